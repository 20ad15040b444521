// The scenarios of the Vercel AI SDK, whichever major: node with_NAME.mjs ROOT_URL
// `run(telemetry, ids)` gives each call the options that switch telemetry on, and each request the ids.
import { createOpenAI } from "@ai-sdk/openai";
import { generateObject, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import * as harness from "./harness.mjs";

const { question, system, turns, user } = harness;
harness.tracing();

const model = createOpenAI({ baseURL: `${harness.root}/v1`, apiKey: "none" }).chat("small");
const track = tool({
  description: "Find a parcel.",
  inputSchema: z.object({ number: z.number() }),
  execute: harness.track,
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
          messages: [...turns, user(question)],
        }),
    ],
    tool: () => generateText({ ...common, prompt: harness.toolQuestion, tools: { track }, stopWhen: stepCountIs(3) }),
    stuffed: () => generateText({ ...common, prompt: harness.stuffed }),
    typed: () => generateObject({ ...common, schema: stay, prompt: harness.typedQuestion }),
    typed_with_tool: () =>
      generateText({
        ...common,
        prompt: harness.toolQuestion,
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
    error: () => generateText({ ...common, prompt: harness.errorQuestion }),
  };
}

export const run = (telemetry, ids = {}) =>
  harness.run(scenarios(telemetry), (work) => harness.request(work, ids));
