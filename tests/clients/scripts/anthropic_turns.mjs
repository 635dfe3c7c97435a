// @anthropic-ai/sdk: turns, streams, thinking, a tool, token counts, a cancel, errors. The argument is the server's /v1.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.argv[2].replace(/\/v1$/, ""), apiKey: "none", maxRetries: 0 });
const model = "demo-13m";
const messages = [{ role: "user", content: "What is 47 + 85?" }];
const input_schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ name: "get_weather", description: "Get the weather of a city.", input_schema }];
const fields = { model, max_tokens: 300, temperature: 0 };
const textOf = (message) => message.content.flatMap((block) => (block.type === "text" ? [block.text] : [])).join("");

assert.deepEqual((await client.models.list()).data.map((one) => one.id), [model]);

const whole = await client.messages.create({ ...fields, messages });
assert.match(textOf(whole), /132/);
const counted = await client.messages.countTokens({ model, messages });
assert.equal(whole.usage.input_tokens + whole.usage.cache_read_input_tokens, counted.input_tokens);

const thinking = { type: "enabled", budget_tokens: 1024 };
const stream = client.messages.stream({ ...fields, max_tokens: 1500, messages, thinking });
const kinds = new Set();
stream.on("thinking", () => kinds.add("thinking")).on("text", () => kinds.add("text"));
const final = await stream.finalMessage();
assert.deepEqual([...kinds], ["thinking", "text"]);
assert.match(textOf(final), /132/);

const turns = [{ role: "user", content: "What is the weather in Paris?" }];
const choice = { type: "tool", name: "get_weather" };
const called = await client.messages.stream({ ...fields, messages: turns, tools, tool_choice: choice }).finalMessage();
const call = called.content.find((block) => block.type === "tool_use");
assert.equal(called.stop_reason, "tool_use");
assert.ok(call.input.city);
const result = { type: "tool_result", tool_use_id: call.id, content: "12 degrees, sunny" };
turns.push({ role: "assistant", content: called.content }, { role: "user", content: [result] });
assert.match(textOf(await client.messages.create({ ...fields, messages: turns, tools })), /12 degrees/);

const endless = client.messages.stream({ ...fields, max_tokens: 1500, messages, ignore_eos: true });
await assert.rejects(
  endless.on("text", () => endless.abort()).finalMessage(),
  (error) => error instanceof Anthropic.APIUserAbortError,
);

await assert.rejects(
  client.messages.create({ ...fields, model: "claude-none", messages }),
  (error) => error instanceof Anthropic.NotFoundError && error.error.error.type === "not_found_error",
);
await assert.rejects(
  client.messages.create({ ...fields, messages: [{ role: "user", content: "word ".repeat(5000) }] }),
  (error) => error instanceof Anthropic.BadRequestError && /prompt is too long/.test(error.message),
);
