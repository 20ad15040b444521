// The scenarios of the Vercel AI SDK, whichever major: node with_NAME.mjs ROOT_URL
// `run(telemetry, ids)` gives each call the options that switch telemetry on, and each request the ids.
import { createOpenAI } from "@ai-sdk/openai";
import { trace } from "@opentelemetry/api";
import { OTLPTraceExporter } from "@opentelemetry/exporter-trace-otlp-proto";
import { resourceFromAttributes } from "@opentelemetry/resources";
import { BatchSpanProcessor, NodeTracerProvider } from "@opentelemetry/sdk-trace-node";
import { generateObject, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const root = process.argv[2];
const provider = new NodeTracerProvider({
  resource: resourceFromAttributes({ "service.name": "shop" }),
  spanProcessors: [new BatchSpanProcessor(new OTLPTraceExporter({ url: `${root}/v1/traces` }))],
});
provider.register();

const model = createOpenAI({ baseURL: `${root}/v1`, apiKey: "none" }).chat("small");
const system = "Be brief.";
const question = "Where is my parcel?";
const user = (content) => ({ role: "user", content });
const documents = ["Parcels leave on Mondays.", "A parcel takes two days."];
const track = tool({
  description: "Find a parcel.",
  inputSchema: z.object({ number: z.number() }),
  execute: async ({ number }) => `Parcel ${number} is in Bern.`,
});
const stay = z.object({ city: z.string(), days: z.number() });

function scenarios(telemetry) {
  const common = { model, system, maxRetries: 0, ...telemetry };
  return {
    single: () => generateText({ ...common, prompt: question }),
    async stream() {
      for await (const _ of streamText({ ...common, prompt: question }).textStream);
    },
    two_turns: [
      () => generateText({ ...common, messages: [user(question)] }),
      () =>
        generateText({
          ...common,
          messages: [user(question), { role: "assistant", content: "It is in Bern." }, user(question)],
        }),
    ],
    tool: () => generateText({ ...common, prompt: "Where is parcel 7?", tools: { track }, stopWhen: stepCountIs(3) }),
    stuffed: () =>
      generateText({ ...common, prompt: `Documents:\n${documents.join("\n")}\n\nQuestion: When do parcels leave?` }),
    typed: () => generateObject({ ...common, schema: stay, prompt: "Which city, and for how many days?" }),
    typed_with_tool: () =>
      generateText({
        ...common,
        prompt: "Where is parcel 7?",
        tools: { track },
        stopWhen: stepCountIs(3),
        output: Output.object({ schema: stay }),
      }),
    image: () =>
      generateText({
        ...common,
        messages: [
          user([
            { type: "text", text: question },
            { type: "file", data: new URL("https://shop.example/parcel.png"), mediaType: "image/png" },
          ]),
        ],
      }),
    error: () => generateText({ ...common, prompt: "Please fail." }),
  };
}

let attributes = {};
const request = (work) =>
  trace.getTracer("web").startActiveSpan("POST /ask", { attributes }, async (span) => {
    try {
      return await work();
    } finally {
      span.end();
    }
  });

export async function run(telemetry, ids = {}) {
  attributes = ids;
  for (const [name, scenario] of Object.entries(scenarios(telemetry))) {
    await fetch(`${root}/scenario/${name}`, { method: "POST" });
    try {
      for (const work of [scenario].flat()) await request(work);
    } catch (error) {
      if (name !== "error") throw error;
    }
    await provider.forceFlush();
  }
  await provider.shutdown();
}
