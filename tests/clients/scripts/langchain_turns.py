# /// script
# requires-python = ">=3.11"
# dependencies = ["langchain-openai==1.7.4"]
# ///
"""langchain-openai over chat completions and responses: turns, streams, a tool, typed output, errors.

The argument is the server's /v1.
"""

import sys
from collections.abc import Callable
from typing import Any

import openai
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

BASE_URL = sys.argv[1]
SUM = "What is 47 + 85?"


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"12 degrees, sunny in {city}"


class Verdict(BaseModel):
    """Whether a sum is right."""

    right: bool


def refused(ask: Callable[[], object]) -> openai.BadRequestError:
    """The error that asking comes to."""
    try:
        ask()
    except openai.BadRequestError as error:
        return error
    raise AssertionError("it was answered")


def turns(**fields: Any) -> None:
    model = ChatOpenAI(
        model="demo-13m", base_url=BASE_URL, api_key="none", temperature=0, max_tokens=300, max_retries=0, **fields
    )
    whole = model.invoke(SUM)
    assert "132" in whole.text, whole
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["input_tokens"] > 0, whole

    text = "".join(chunk.text for chunk in model.stream(SUM))
    assert text == whole.text, text

    question = HumanMessage("What is the weather in Paris?")
    called = model.bind_tools([get_weather], tool_choice="get_weather").invoke([question])
    assert isinstance(called, AIMessage)
    (call,) = called.tool_calls
    assert call["name"] == "get_weather", called
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage)
    answer = model.bind_tools([get_weather]).invoke([question, called, result])
    assert "12 degrees" in answer.text, answer

    verdict = model.with_structured_output(Verdict).invoke("Is 47 + 85 = 132?")
    assert isinstance(verdict, Verdict), verdict
    if not fields:  # over chat completions there are two ways
        verdict = model.with_structured_output(Verdict, method="function_calling").invoke("Is 47 + 85 = 132?")
        assert isinstance(verdict, Verdict), verdict

    assert refused(lambda: model.invoke(SUM, temperature=3)).param == "temperature"
    assert refused(lambda: model.invoke("word " * 5000)).code == "context_length_exceeded"


turns()
turns(use_responses_api=True)
