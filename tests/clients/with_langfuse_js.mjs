// Langfuse's SDK for JavaScript: its processor beside the exporter, its wrapper of OpenAI's client, and typed steps.
import { observeOpenAI } from "@langfuse/openai";
import { LangfuseSpanProcessor } from "@langfuse/otel";
import { observe, propagateAttributes } from "@langfuse/tracing";
import OpenAI from "openai";
import * as harness from "./harness.mjs";

// Langfuse's own processor sends to an address where nobody listens.
harness.tracing(new LangfuseSpanProcessor({ publicKey: "pk", secretKey: "sk", baseUrl: "http://127.0.0.1:9" }));

const client = observeOpenAI(new OpenAI({ baseURL: `${harness.root}/v1`, apiKey: "none", maxRetries: 0 }));
const parameters = { type: "object", properties: { number: { type: "integer" } }, required: ["number"] };
const tools = [{ type: "function", function: { name: "track", parameters } }];
const properties = { city: { type: "string" }, days: { type: "integer" } };
const response_format = { type: "json_schema", json_schema: { name: "stay", schema: { type: "object", properties } } };

const send = (messages, options) => client.chat.completions.create({ model: "small", messages, ...options });
const ask = (messages, options) => send([{ role: "system", content: harness.system }, ...messages], options);
const textOf = (completion) => completion.choices[0].message.content;
const step = (asType, name, work) => observe(work, { asType, name });

const answer = step("chain", "answer", async (question, ...turns) => textOf(await ask([...turns, harness.user(question)])));
const track = step("tool", "track", harness.track);
const support = step("agent", "support", async (question) => {
  const { message } = (await ask([harness.user(question)], { tools })).choices[0];
  const [call] = message.tool_calls;
  const result = { role: "tool", tool_call_id: call.id, content: await track(JSON.parse(call.function.arguments)) };
  return textOf(await ask([harness.user(question), message, result], { tools }));
});
const search = step("retriever", "search", async (_query) => harness.documents);
const answerFromDocuments = step("chain", "answer", async (question) => {
  await search(question);
  return textOf(await ask([harness.user(harness.stuffed)]));
});
const choose = step("agent", "support", async (question) =>
  JSON.parse(textOf(await ask([harness.user(question)], { response_format }))),
);

const scenarios = {
  single: () => answer(harness.question),
  async stream() {
    const stream_options = { include_usage: true };
    for await (const _ of await ask([harness.user(harness.question)], { stream: true, stream_options }));
  },
  two_turns: [() => answer(harness.question), () => answer(harness.question, ...harness.turns)],
  tool: () => support(harness.toolQuestion),
  retrieval: () => answerFromDocuments(harness.retrievalQuestion),
  typed: () => choose(harness.typedQuestion),
  error: () => answer(harness.errorQuestion),
};
await harness.run(scenarios, (work) => propagateAttributes({ sessionId: "session-1", userId: "user-1" }, work));
