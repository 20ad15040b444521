// One scenario of the OpenAI client in Node.js, traced by OpenTelemetry's own instrumentation: node node_client.js NAME
const { trace } = require("@opentelemetry/api");
const { OpenAIInstrumentation } = require("@opentelemetry/instrumentation-openai");
const { startNodeSdk } = require("@opentelemetry/sdk-node");

const sdk = startNodeSdk({ instrumentations: [new OpenAIInstrumentation({ captureMessageContent: true })] });
const { OpenAI } = require("openai");

const client = new OpenAI({ maxRetries: 0 });
const model = "small";
const user = (content) => ({ role: "user", content });
const brief = { role: "system", content: "Be brief." };
const question = "Where is my parcel?";
const track = { name: "track", parameters: { type: "object", properties: { number: { type: "integer" } } } };
const chat = (messages, options) => client.chat.completions.create({ model, messages: [brief, ...messages], ...options });
const respond = (input, options) =>
  client.responses.create({ model, instructions: brief.content, input, ...options });

async function drain(stream) {
  for await (const _ of await stream);
}

const scenarios = {
  single: () => chat([user(question)]),
  stream: () => drain(chat([user(question)], { stream: true, stream_options: { include_usage: true } })),
  history: () => chat([user(question), { role: "assistant", content: "It is in Bern." }, user(question)]),
  async two_turns() {
    const first = await chat([user(question)]);
    await chat([user(question), first.choices[0].message, user(question)]);
  },
  async tool() {
    const tools = [{ type: "function", function: track }];
    const asked = [user("Where is parcel 7?")];
    const { message } = (await chat(asked, { tools })).choices[0];
    const result = { role: "tool", tool_call_id: message.tool_calls[0].id, content: "Parcel 7 is in Bern." };
    await chat([...asked, message, result], { tools });
  },
  typed: () =>
    chat([user("Which city, and for how many days?")], {
      response_format: { type: "json_schema", json_schema: { name: "stay", schema: { type: "object" } } },
    }),
  error: () => chat([user("Please fail.")]),
  responses: () => respond(question),
  responses_stream: () => drain(respond([user(question)], { stream: true })),
  async responses_tool() {
    const tools = [{ type: "function", strict: false, ...track }];
    const asked = [user("Where is parcel 7?")];
    const { output } = await respond(asked, { tools });
    const result = { type: "function_call_output", call_id: output[0].call_id, output: "Parcel 7 is in Bern." };
    await respond([...asked, ...output, result], { tools });
  },
  responses_image: () =>
    respond([
      user([
        { type: "input_text", text: question },
        { type: "input_image", image_url: "data:image/png;base64,AAAA", detail: "auto" },
      ]),
    ]),
  embeddings: () => client.embeddings.create({ model, input: question }),
};

const name = process.argv[2];
const ids = { "session.id": "session-1", "user.id": "user-1" };
trace.getTracer("web").startActiveSpan("POST /ask", { attributes: ids }, async (span) => {
  try {
    await scenarios[name]();
  } catch (error) {
    if (name !== "error") throw error;
  } finally {
    span.end();
    await sdk.shutdown();
  }
});
