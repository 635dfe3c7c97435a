# /// script
# requires-python = ">=3.11"
# dependencies = ["litellm==1.110.2"]
# ///
"""litellm, as `openai/` and `anthropic/` models: turns, streams, a tool, errors. The argument is the server's /v1."""

import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or the import fetches one
import litellm

litellm.suppress_debug_info = True
litellm.num_retries = 0

BASE_URL = sys.argv[1]
SUM: list[Any] = [{"role": "user", "content": "What is 47 + 85?"}]
LONG: list[Any] = [{"role": "user", "content": "word " * 5000}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CHOICE: Any = {"type": "function", "function": {"name": "get_weather"}}


def ask(model: str, messages: list[Any], temperature: float = 0, **fields: Any) -> Any:
    base = BASE_URL if model.startswith("openai/") else BASE_URL.removesuffix("/v1")
    return litellm.completion(
        model=model, messages=messages, api_base=base, api_key="none", temperature=temperature, **fields
    )


def turns(model: str) -> None:
    whole = ask(model, SUM, max_tokens=300)
    assert "132" in whole.choices[0].message.content, whole
    assert whole.usage.prompt_tokens > 0, whole.usage
    assert whole.choices[0].finish_reason == "stop", whole

    chunks = list(ask(model, SUM, max_tokens=300, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content, text
    built = litellm.stream_chunk_builder(chunks)
    assert built.usage.completion_tokens == whole.usage.completion_tokens, (built.usage, whole.usage)

    messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    called = ask(model, messages, max_tokens=300, tools=[WEATHER], tool_choice=CHOICE).choices[0]
    (call,) = called.message.tool_calls
    assert (called.finish_reason, call.function.name) == ("tool_calls", "get_weather"), called
    assert json.loads(call.function.arguments)["city"], called
    messages += [called.message, {"role": "tool", "tool_call_id": call.id, "content": "12 degrees, sunny"}]
    answer = ask(model, messages, max_tokens=300, tools=[WEATHER]).choices[0]
    assert "12 degrees" in answer.message.content, answer

    refused = [(litellm.BadRequestError, SUM, 3.0), (litellm.ContextWindowExceededError, LONG, 0.0)]
    for kind, messages, temperature in refused:
        try:
            ask(model, messages, max_tokens=9, temperature=temperature)
        except kind:
            continue
        raise AssertionError(f"{model}: no {kind.__name__}")


for model in ("openai/demo-13m", "anthropic/demo-13m"):
    turns(model)
