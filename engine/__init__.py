"""The speculative-decoding engine: loads a model with its MTP head and decodes with it, exactly."""
