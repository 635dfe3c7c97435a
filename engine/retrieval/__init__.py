"""Models that compare texts: embeddings of single ones, and scores of documents for a query."""
