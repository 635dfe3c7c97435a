"""The answer of the one endpoint of Ollama's that is here: what programs ask that look for models on a machine."""

from server.api.errors import Shape


class TagDetails(Shape):
    format: str
    family: str
    families: list[str]
    quantization_level: str


class Tag(Shape):
    name: str
    model: str
    modified_at: str
    size: int
    details: TagDetails


class Tags(Shape):
    models: list[Tag]
