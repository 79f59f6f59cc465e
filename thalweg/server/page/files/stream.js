// What is sent, and what comes back: bodies of requests, server-sent events, and a turn put together from deltas.

export const NUMBERS = [
  // name, label, least, most, step, what it is where nobody says
  ["temperature", "Temperature", 0, 2, 0.05, "1"],
  ["top_p", "Top p", 0, 1, 0.01, "1"],
  ["top_k", "Top k", 0, null, 1, "all"],
  ["min_p", "Min p", 0, 1, 0.01, "0"],
  ["presence_penalty", "Presence penalty", -2, 2, 0.1, "0"],
  ["frequency_penalty", "Frequency penalty", -2, 2, 0.1, "0"],
  ["repetition_penalty", "Repetition penalty", 0.1, 2, 0.05, "1"],
  ["max_tokens", "Longest answer", 1, null, 1, "no limit"],
  ["seed", "Seed", null, null, 1, "random"],
];

/** The body of a request. chat: the model takes conversations, else it only continues text. */
export function body(messages, settings, model, chat) {
  const made = { model, stream: true, stream_options: { include_usage: true } };
  for (const [name] of NUMBERS) {
    const value = settings[name];
    if (value !== "" && value != null && Number.isFinite(Number(value))) made[name] = Number(value);
  }
  const stop = (settings.stop ?? "").split("\n").filter(Boolean);
  if (stop.length) made.stop = stop;
  if (!chat) {
    made.prompt = (settings.system ? settings.system + "\n\n" : "") + messages.map((m) => m.content).join("");
    return made;
  }
  const tools = toolsOf(settings.tools);
  if (tools.length) made.tools = tools;
  made.messages = settings.system ? [{ role: "system", content: settings.system }] : [];
  for (const m of messages) {
    if (m.role === "tool") made.messages.push({ role: "tool", tool_call_id: m.tool_call_id, content: m.content });
    else if (m.role === "user") made.messages.push({ role: "user", content: m.content });
    else if (m.content || m.tool_calls?.length) {
      const said = { role: "assistant", content: m.content || null };
      if (m.tool_calls?.length) {
        said.tool_calls = m.tool_calls.map((c) => ({ id: c.id, type: "function", function: { name: c.name, arguments: c.arguments } }));
        if (m.reasoning) said.reasoning = m.reasoning;
      }
      made.messages.push(said);
    }
  }
  return made;
}

/** The functions of a settings text. Throws with words for who wrote it. */
export function toolsOf(text) {
  if (!text?.trim()) return [];
  let made;
  try {
    made = JSON.parse(text);
  } catch (e) {
    throw new Error(`The tools are not JSON: ${e.message}`);
  }
  made = Array.isArray(made) ? made : [made];
  if (!made.every((t) => t?.function?.name)) throw new Error('Each tool needs {"type": "function", "function": {"name": …}}');
  return made;
}

/** The data of server-sent events, parsed. */
export async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data && data !== "[DONE]") yield JSON.parse(data);
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

/** An assistant's message as its chunks come. */
export class Turn {
  constructor(now = () => performance.now()) {
    this.now = now;
    this.began = now();
    this.first = this.last = 0;
    this.tokens = 0;
    this.message = { role: "assistant", content: "", reasoning: "", tool_calls: [] };
  }

  take(chunk) {
    if (chunk.error) throw new ServerError(chunk.error.message, chunk.error.code);
    if (chunk.usage) this.tokens = chunk.usage.completion_tokens;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const delta = choice.delta ?? { content: choice.text };
    const m = this.message;
    const thought = delta.reasoning ?? delta.reasoning_content;
    if (delta.content || thought || delta.tool_calls) {
      this.last = this.now();
      this.first ||= this.last;
    }
    if (thought) m.reasoning += thought;
    if (delta.content) m.content += delta.content;
    for (const d of delta.tool_calls ?? []) {
      const call = (m.tool_calls[d.index ?? 0] ??= { id: "", name: "", arguments: "" });
      if (d.id) call.id = d.id;
      if (d.function?.name) call.name = d.function.name;
      if (d.function?.arguments) call.arguments += d.function.arguments;
    }
    if (choice.finish_reason) m.finish = choice.finish_reason;
  }

  /** Milliseconds and tokens, as the reader saw them. */
  stats() {
    const seconds = (this.last - this.first) / 1000;
    return {
      tokens: this.tokens,
      first: this.first ? this.first - this.began : 0,
      rate: this.tokens > 1 && seconds > 0 ? (this.tokens - 1) / seconds : 0,
    };
  }
}

export class ServerError extends Error {
  constructor(message, status, retryAfter = 0) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** The error that an answer is. */
export async function errorOf(response) {
  let words = `The server answered ${response.status}`;
  try {
    const said = await response.json();
    words = said.error?.message ?? words;
  } catch { /* not JSON: the status has to do */ }
  return new ServerError(words, response.status, Number(response.headers.get("retry-after") ?? 0));
}
