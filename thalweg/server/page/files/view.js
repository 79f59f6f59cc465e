// Elements of a conversation. Everything a model or a user wrote becomes text nodes.

import { nodes, parse } from "./markdown.js";

export const $ = (id) => document.getElementById(id);

export function el(tag, fields = {}, ...children) {
  const made = Object.assign(document.createElement(tag), fields);
  made.append(...children.filter((c) => c != null));
  return made;
}

const PATHS = {
  copy: ["M9 9h10v11H9z", "M15 9V4H5v11h4"],
  retry: ["M4 12a8 8 0 1 0 2.6-5.9", "M4 4v4.6h4.6"],
  edit: ["M5 19l1-4L16.5 4.5l3 3L9 18z"],
  remove: ["M6 6l12 12M18 6L6 18"],
};

export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  for (const d of PATHS[name]) {
    const path = document.createElementNS(svg.namespaceURI, "path");
    path.setAttribute("d", d);
    svg.append(path);
  }
  return svg;
}

export function button(name, label, onclick) {
  const made = el("button", { type: "button", className: "act", title: label, onclick }, icon(name));
  made.setAttribute("aria-label", label);
  return made;
}

/** false: the browser would not. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { // no secure context: the old way
    const area = el("textarea", { value: text, className: "unseen" });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

function copier(text, label) {
  const made = button("copy", label, async () => {
    made.classList.toggle("done", await copy(text()));
    setTimeout(() => made.classList.remove("done"), 1200);
  });
  return made;
}

function codeBlock(text, lang) {
  const head = el("div", { className: "code-head" }, el("span", { textContent: lang || "text" }), copier(() => text, "Copy this code"));
  const pre = el("pre", { tabIndex: 0 }, el("code", { textContent: text }));
  return el("div", { className: "code" }, head, pre);
}

/** One message. `on` has retry, edit and result, each called with the message. */
export class MessageView {
  constructor(message, on) {
    this.on = on;
    this.root = el("article", { className: `msg ${message.role}` });
    this.root.setAttribute("aria-label", { user: "You", assistant: "Answer", tool: "Tool result" }[message.role]);
    this.wasOpen = null;
    this.show(message, false);
  }

  /** live: it is being written. */
  show(message, live) {
    const parts = [];
    this.root.classList.toggle("live", live);
    if (message.role === "user") {
      parts.push(el("div", { className: "bubble", textContent: message.content }));
    } else if (message.role === "tool") {
      parts.push(el("div", { className: "tool-result" }, el("span", { textContent: "Result" }), el("pre", { textContent: message.content })));
    } else {
      if (message.reasoning) parts.push(this.reasoning(message, live));
      if (message.content) parts.push(el("div", { className: "prose" }, nodes(parse(message.content), codeBlock)));
      for (const call of message.tool_calls ?? []) if (call) parts.push(toolCall(call));
      if (live && !message.content && !message.reasoning && !message.tool_calls?.length) {
        parts.push(el("div", { className: "wait" }, el("i"), el("i"), el("i")));
      }
      if (message.error) parts.push(el("p", { className: "error", role: "alert", textContent: message.error }));
    }
    if (!live) parts.push(this.foot(message));
    this.root.replaceChildren(...parts);
  }

  /** Open while it is all there is, unless the reader decided. */
  reasoning(message, live) {
    const thinking = live && !message.content && !message.tool_calls?.length;
    const made = el("details", { className: "reasoning", open: this.wasOpen ?? thinking });
    const seen = el("summary", { textContent: thinking ? "Thinking" : "Reasoning" });
    seen.onclick = () => (this.wasOpen = !made.open);
    made.append(seen, el("div", { className: "thought", textContent: message.reasoning.trim() }));
    return made;
  }

  foot(message) {
    const made = el("footer");
    if (message.role === "user") {
      made.append(button("edit", "Edit and send again", () => this.on.edit(message)), copier(() => message.content, "Copy"));
    } else if (message.role === "assistant") {
      made.append(copier(() => message.content, "Copy"), button("retry", "Answer again", () => this.on.retry(message)));
      const words = told(message);
      if (words) made.append(el("span", { className: "stats", textContent: words }));
    }
    return made;
  }
}

const ENDS = { length: "cut at the longest answer", stopped: "stopped", abort: "ended by the server" };

function told(message) {
  const s = message.stats ?? {}, words = [];
  if (s.tokens) words.push(`${s.tokens} token${s.tokens === 1 ? "" : "s"}`);
  if (s.rate) words.push(`${s.rate < 10 ? s.rate.toFixed(1) : Math.round(s.rate)} tokens/s`);
  if (s.first) words.push(`first after ${s.first < 1000 ? `${Math.round(s.first)} ms` : `${(s.first / 1000).toFixed(1)} s`}`);
  if (ENDS[message.finish]) words.push(ENDS[message.finish]);
  return words.join(" · ");
}

function toolCall(call) {
  let args = call.arguments;
  try {
    args = JSON.stringify(JSON.parse(args), null, 2);
  } catch { /* half of it, or not JSON: as it is */ }
  const made = el("details", { className: "call", open: true });
  made.append(el("summary", {}, el("span", { textContent: "Calls " }), el("code", { textContent: call.name || "…" })));
  if (args && args !== "{}") made.append(el("pre", { textContent: args }));
  return made;
}

/** Fields for the results of calls. done(texts) when they are sent. */
export function results(calls, done) {
  const fields = calls.map((c) => {
    const made = el("textarea", { rows: 2, className: "mono", placeholder: `What ${c.name} returns` });
    made.setAttribute("aria-label", `Result of ${c.name}`);
    return made;
  });
  const send = el("button", { className: "plain", textContent: calls.length > 1 ? "Send the results" : "Send the result" });
  return el("form", { className: "results", onsubmit: (e) => (e.preventDefault(), done(fields.map((f) => f.value))) }, ...fields, send);
}

/** Numbers as a line, newest right. svg has paths .area and .line in a box of 120 x 28. */
export function spark(svg, values) {
  const most = Math.max(1, ...values), step = 120 / Math.max(1, values.length - 1);
  const line = values.map((v, i) => `${i ? "L" : "M"}${(i * step).toFixed(1)} ${(26 - (24 * v) / most).toFixed(1)}`).join("");
  svg.querySelector(".line").setAttribute("d", line);
  svg.querySelector(".area").setAttribute("d", line ? `${line}L120 28L0 28Z` : "");
}
