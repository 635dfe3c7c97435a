# /// script
# requires-python = ">=3.11"
# dependencies = ["pydantic-ai-slim[openai,anthropic]==2.68.0"]
# ///
"""pydantic-ai over all three APIs: turns, streams, a tool that it runs itself, typed output, errors.

The argument is the server's /v1.
"""

import asyncio
import sys

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

BASE_URL = sys.argv[1]
SUM = "What is 47 + 85?"
SETTINGS = ModelSettings(temperature=0, max_tokens=300)


class Verdict(BaseModel):
    """Whether a sum is right."""

    right: bool


async def turns(model: Model) -> None:
    agent = Agent(model, model_settings=SETTINGS, retries=0)
    whole = await agent.run(SUM)
    assert "132" in whole.output, whole
    assert whole.usage.input_tokens > 0, whole.usage

    async with agent.run_stream(SUM) as stream:
        text = "".join([delta async for delta in stream.stream_text(delta=True, debounce_by=None)])
    assert text == whole.output, text

    asked: list[str] = []
    weather_agent = Agent(model, model_settings=SETTINGS, retries=0)

    @weather_agent.tool_plain
    def get_weather(city: str) -> str:
        """Get the weather of a city."""
        asked.append(city)
        return "12 degrees, sunny"

    answer = await weather_agent.run("What is the weather in Paris?")
    assert asked == ["Paris"], asked
    assert "12 degrees" in answer.output, answer
    again = await weather_agent.run(SUM, message_history=answer.all_messages())
    assert again.output, again

    # It asks for native output of Claude models only, by name.
    for output in (ToolOutput(Verdict), *([] if isinstance(model, AnthropicModel) else [NativeOutput(Verdict)])):
        typed = await Agent(model, model_settings=SETTINGS, retries=0, output_type=output).run("Is 47 + 85 = 132?")
        assert isinstance(typed.output, Verdict), typed

    try:
        await agent.run(SUM, model_settings=ModelSettings(temperature=3))
        status = 200
    except ModelHTTPError as error:
        status = error.status_code
    assert status == 400, status


openai_provider = OpenAIProvider(base_url=BASE_URL, api_key="none")
anthropic_provider = AnthropicProvider(base_url=BASE_URL.removesuffix("/v1"), api_key="none")
for model in (
    OpenAIChatModel("demo-13m", provider=openai_provider),
    OpenAIResponsesModel("demo-13m", provider=openai_provider),
    AnthropicModel("demo-13m", provider=anthropic_provider),
):
    print(type(model).__name__, flush=True)
    asyncio.run(turns(model))
