// openai (node) over chat completions and responses: turns, streams, a tool, typed output, a cancel, errors.
// The argument is the server's /v1.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const model = "demo-13m";
const messages = [{ role: "user", content: "What is 47 + 85?" }];
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const weather = { name: "get_weather", description: "Get the weather of a city.", parameters };
const schema = {
  type: "object",
  properties: { right: { type: "boolean" } },
  required: ["right"],
  additionalProperties: false,
};

assert.deepEqual((await client.models.list()).data.map((one) => one.id), [model]);

{
  const fields = { model, temperature: 0 };
  const whole = await client.chat.completions.create({ ...fields, messages });
  assert.match(whole.choices[0].message.content, /132/);
  const stream = client.chat.completions.stream({ ...fields, messages, stream_options: { include_usage: true } });
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].message.content, whole.choices[0].message.content);
  assert.equal(final.usage.completion_tokens, whole.usage.completion_tokens);

  const asked = [];
  const get_weather = { ...weather, parse: JSON.parse, function: ({ city }) => asked.push(city) && "12 degrees, sunny" };
  const runner = client.chat.completions.runTools({
    ...fields,
    messages: [{ role: "user", content: "What is the weather in Paris?" }],
    tools: [{ type: "function", function: get_weather }],
    stream: true,
  });
  assert.match(await runner.finalContent(), /12 degrees/);
  assert.deepEqual(asked, ["Paris"]);

  const response_format = { type: "json_schema", json_schema: { name: "verdict", strict: true, schema } };
  const typed = await client.chat.completions.create({ ...fields, messages, response_format });
  assert.deepEqual(Object.keys(JSON.parse(typed.choices[0].message.content)), ["right"]);

  const endless = await client.chat.completions.create({ ...fields, messages, stream: true, ignore_eos: true });
  for await (const chunk of endless) if (chunk.choices[0]?.delta.content) break; // which closes the connection
}

{
  const fields = { model, temperature: 0 };
  const whole = await client.responses.create({ ...fields, input: messages });
  assert.match(whole.output_text, /132/);
  const stream = client.responses.stream({ ...fields, input: messages });
  const kinds = new Set();
  for await (const event of stream) kinds.add(event.type);
  assert.ok(kinds.has("response.output_text.delta"), [...kinds]);
  assert.equal((await stream.finalResponse()).output_text, whole.output_text);

  const input = [{ role: "user", content: "What is the weather in Paris?" }];
  const tools = [{ type: "function", strict: false, ...weather }];
  const choice = { type: "function", name: "get_weather" };
  const called = await client.responses.create({ ...fields, input, tools, tool_choice: choice });
  const call = called.output.find((item) => item.type === "function_call");
  assert.ok(JSON.parse(call.arguments).city);
  input.push(...called.output, { type: "function_call_output", call_id: call.call_id, output: "12 degrees, sunny" });
  assert.match((await client.responses.create({ ...fields, input, tools })).output_text, /12 degrees/);
}

await assert.rejects(
  client.chat.completions.create({ model: "gpt-none", messages }),
  (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found",
);
await assert.rejects(
  client.responses.create({ model, input: "word ".repeat(5000) }),
  (error) => error instanceof OpenAI.BadRequestError && error.code === "context_length_exceeded",
);
