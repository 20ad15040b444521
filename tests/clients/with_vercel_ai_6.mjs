import { run } from "./vercel_scenarios.mjs";

const metadata = { sessionId: "session-1", userId: "user-1" };
await run({ experimental_telemetry: { isEnabled: true, functionId: "ask", metadata } });
