# /// script
# requires-python = ">=3.11"
# dependencies = ["llm==0.36"]
# ///
"""llm, set up as its documentation says for servers of the OpenAI API: turns, streams, a tool, a schema, an error.

The argument is the server's /v1. LLM_USER_PATH is its own folder for settings.
"""

import json
import os
import sys
from pathlib import Path

import llm
import openai

BASE_URL = sys.argv[1]
SUM = "What is 47 + 85?"

settings = [
    {
        "model_id": "demo",
        "model_name": "demo-13m",
        "api_base": BASE_URL,
        "supports_tools": True,
        "supports_schema": True,
    }
]
Path(os.environ["LLM_USER_PATH"], "extra-openai-models.yaml").write_text(json.dumps(settings))  # JSON is YAML
model = llm.get_model("demo")
model.key = "none"

whole = model.prompt(SUM, stream=False, temperature=0)
assert "132" in whole.text(), whole.text()
assert whole.usage().input, whole.usage()
streamed = model.prompt(SUM, temperature=0)
assert "".join(streamed) == whole.text(), streamed.text()
assert (streamed.usage().input, streamed.usage().output) == (whole.usage().input, whole.usage().output)

talk = model.conversation()
talk.prompt(SUM, temperature=0).text()
assert talk.prompt("Thanks!", temperature=0).text()

asked: list[str] = []


def get_weather(city: str) -> str:
    """Get the weather of a city."""
    asked.append(city)
    return "12 degrees, sunny"


for stream in (True, False):
    asked.clear()
    chain = model.chain("What is the weather in Paris?", tools=[get_weather], stream=stream, options={"temperature": 0})
    assert "12 degrees" in chain.text(), chain.text()
    assert asked == ["Paris"], asked

schema = {"type": "object", "properties": {"right": {"type": "boolean"}}, "required": ["right"]}
verdict = json.loads(model.prompt("Is 47 + 85 = 132?", schema=schema, temperature=0).text())
assert list(verdict) == ["right"], verdict

try:
    model.prompt("word " * 5000, stream=False).text()
    code = "none"
except openai.BadRequestError as error:
    code = str(error.code)
assert code == "context_length_exceeded", code
