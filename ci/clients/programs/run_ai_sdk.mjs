// node run_ai_sdk.mjs ADDRESS MODEL QUESTION PROVIDER text|object|object-with-tool [--once]. Prints the answers.
//
// text: a tool loop, whole and streamed, and a question after each. object: an object without tools, by both ways that the SDK has. object-with-tool: a tool
// loop that ends in an object. --once: one text without tools.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";

import { generateObject, generateText, Output, stepCountIs, streamObject, streamText, tool } from "ai";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createCohere } from "@ai-sdk/cohere";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false;
const [url, name, question, provider, work, ...flags] = process.argv.slice(2);
const apiKey = "none";

const compatible = (supportsStructuredOutputs) =>
  createOpenAICompatible({ name: "local", baseURL: `${url}/v1`, apiKey, supportsStructuredOutputs })(name);
const anthropic = () => createAnthropic({ baseURL: `${url}/v1`, apiKey })(name);
const responses = () => createOpenAI({ baseURL: `${url}/v1`, apiKey }).responses(name);
const PROVIDERS = {
  "openai-chat": () => createOpenAI({ baseURL: `${url}/v1`, apiKey }).chat(name),
  "openai-responses": responses,
  "openai-responses-unstored": responses,
  compatible: () => compatible(true),
  "compatible-json": () => compatible(false),
  anthropic,
  "anthropic-known": anthropic,
  cohere: () => createCohere({ baseURL: `${url}/cohere/v2`, apiKey })(name),
};
const OPTIONS = {
  "openai-responses-unstored": { openai: { store: false } },
};

const common = {
  model: PROVIDERS[provider](),
  maxRetries: 0,
  maxOutputTokens: 200,
  providerOptions: OPTIONS[provider],
};
const schema = z.object({ words: z.string(), number: z.number().int() });
const run = (command) => execFileSync("sh", ["-c", command], { encoding: "utf8" });

/** A loop's options with the shell, whose calls must follow its schema, and how often it ran. */
function loop() {
  let runs = 0;
  const made = tool({
    description: "Run a command.",
    inputSchema: z.object({ command: z.string() }),
    strict: true,
    execute: ({ command }) => {
      runs += 1;
      return run(command);
    },
  });
  return [{ tools: { shell: made }, stopWhen: stepCountIs(4) }, () => runs];
}

/** A streamed result, read to its end. Errors of the stream are thrown. */
async function read(result) {
  for await (const part of result.fullStream) {
    if (part.type === "error") throw part.error;
  }
  return result;
}

async function texts() {
  const [first, firstRuns] = loop();
  const whole = await generateText({ ...common, ...first, prompt: question });
  assert.equal(firstRuns(), 1);
  assert.ok(whole.totalUsage.totalTokens > 0);
  const [second, secondRuns] = loop();
  const streamed = await read(streamText({ ...common, ...second, prompt: question, onError: () => {} }));
  assert.equal(secondRuns(), 1);
  assert.equal(await streamed.text, whole.text);
  const steps = await streamed.steps;
  assert.equal(steps[0].finishReason, "tool-calls");
  assert.equal(steps.at(-1).finishReason, "stop");
  for (const { messages } of [await streamed.response, whole.response]) {
    const asked = { role: "user", content: question };
    const again = await generateText({ ...common, messages: [asked, ...messages, { role: "user", content: "Again." }] });
    assert.equal(again.text, whole.text);
  }
  console.log(whole.text);
}

async function objects() {
  const prompt = `${question} It printed ${run("echo MARK-$((40+2))")}`;
  const found = [
    (await generateObject({ ...common, schema, prompt })).object,
    await readObject(streamObject({ ...common, schema, prompt, onError: () => {} })),
    (await generateText({ ...common, output: Output.object({ schema }), prompt })).output,
    await (await read(streamText({ ...common, output: Output.object({ schema }), prompt, onError: () => {} }))).output,
  ];
  for (const object of found) assert.equal(object.number, 42);
  console.log(JSON.stringify(found));
}

async function readObject(result) {
  for await (const part of result.fullStream) {
    if (part.type === "error") throw part.error;
  }
  return result.object;
}

async function objectsWithTool() {
  const output = Output.object({ schema });
  const [first, firstRuns] = loop();
  const whole = await generateText({ ...common, ...first, output, prompt: question });
  assert.equal(firstRuns(), 1);
  assert.equal(whole.output.number, 42);
  const [second, secondRuns] = loop();
  const streamed = await read(streamText({ ...common, ...second, output, prompt: question, onError: () => {} }));
  assert.equal(secondRuns(), 1);
  assert.deepEqual(await streamed.output, whole.output);
  console.log(JSON.stringify(whole.output));
}

if (flags.includes("--once")) console.log((await generateText({ ...common, prompt: question })).text);
else await { text: texts, object: objects, "object-with-tool": objectsWithTool }[work]();
