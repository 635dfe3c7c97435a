# /// script
# requires-python = ">=3.11"
# dependencies = ["instructor==1.17.0"]
# ///
"""instructor in each of its modes that hold the answer to a schema: typed answers, whole and in parts; an error.

The argument is the server's /v1.
"""

import sys
from typing import Any, Literal

import instructor
import openai
from instructor.core import InstructorRetryException
from pydantic import BaseModel, ConfigDict

BASE_URL = sys.argv[1]
ASKED: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]


class Weather(BaseModel):
    """The weather of a city, with no room for free text: a small model does not know when to end one."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Oslo", "Paris"]
    sunny: bool


for mode in (
    instructor.Mode.TOOLS,
    instructor.Mode.TOOLS_STRICT,
    instructor.Mode.JSON_SCHEMA,
    instructor.Mode.RESPONSES_TOOLS,
):
    responses = mode is instructor.Mode.RESPONSES_TOOLS
    client = instructor.from_openai(openai.OpenAI(base_url=BASE_URL, api_key="none", max_retries=0), mode=mode)
    fields: dict[str, Any] = {"model": "demo-13m", "temperature": 0, "max_retries": 1}
    fields["max_output_tokens" if responses else "max_tokens"] = 200
    weather = client.create(response_model=Weather, messages=ASKED, **fields)
    assert isinstance(weather, Weather), (mode, weather)
    *_, last = client.create_partial(response_model=Weather, messages=ASKED, **fields)
    assert last.model_dump() == weather.model_dump(), (mode, last, weather)
    try:
        client.create(response_model=Weather, messages=ASKED, **fields | {"model": "gpt-none"})
        why = "it was answered"
    except InstructorRetryException as error:
        why = str(error)
    assert "gpt-none" in why, (mode, why)
