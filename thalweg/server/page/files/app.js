// The page: a conversation with this server, and what the server is doing meanwhile. It asks nobody else for anything.

import { Store } from "./store.js";
import { body, errorOf, events, NUMBERS, toolsOf, Turn } from "./stream.js";
import { $, button, el, MessageView, results, spark } from "./view.js";

const LOOK = 1000, POINTS = 60, FRAME = 50;
const store = new Store();
const root = document.documentElement;
let server = null, before = null, running = null, rates = [], views = [];

const headers = (more) => ({ ...(store.key ? { Authorization: `Bearer ${store.key}` } : {}), ...more });
const say = (words) => ($("said").textContent = words);

function keep() {
  if (!store.save()) notice("This browser has no room left for conversations: export some, and clear them.");
}

// ------------------------------------------------------------------ the conversation

const on = {
  retry: (message) => again(store.current.messages.indexOf(message)),
  edit: (message) => {
    const chat = store.current, at = chat.messages.indexOf(message);
    if (running || at < 0) return;
    $("ask").value = message.content;
    chat.messages.length = at;
    keep();
    draw();
    fit();
    $("ask").focus();
  },
};

function draw() {
  const chat = store.current, messages = chat?.messages ?? [];
  views = messages.map((m) => new MessageView(m, on));
  $("log").replaceChildren(...(messages.length ? views.map((v) => v.root) : [welcome()]));
  const last = messages.at(-1), calls = last?.role === "assistant" && !last.error ? last.tool_calls ?? [] : [];
  if (calls.length && !running) $("log").append(results(calls, (texts) => answered(calls, texts)));
  list();
  document.title = chat?.title ? `${chat.title} – thalweg` : "thalweg";
  end(true);
}

function welcome() {
  const made = el("div", { className: "welcome" });
  made.append(el("h1", { textContent: "What is on your mind?" }));
  if (server && !server.generates) {
    made.append(el("p", { textContent: "This model gives vectors or scores, and does not chat. The API's description has its routes." }));
    made.append(el("p", {}, el("a", { href: "docs", textContent: "Open the description" })));
    return made;
  }
  const words = server && !server.chat ? "This model continues text." : "Your words go to this server and nowhere else.";
  made.append(el("p", { textContent: words }));
  const ideas = (server?.suggestions ?? []).map((t) => el("button", { type: "button", className: "idea", textContent: t, onclick: () => send(t) }));
  made.append(el("div", { className: "ideas" }, ...ideas));
  return made;
}

function list() {
  $("chats").replaceChildren(...store.chats.map((chat) => {
    const open = el("button", { type: "button", className: "chat", textContent: chat.title || "New conversation", onclick: () => show(chat) });
    if (chat === store.current) open.setAttribute("aria-current", "true");
    const words = `Delete “${chat.title || "New conversation"}”`;
    const gone = button("remove", words, () => {
      if (running?.chat === chat) stop();
      store.remove(chat);
      draw();
    });
    return el("li", {}, open, gone);
  }));
}

function show(chat) {
  if (running && running.chat !== chat) stop();
  store.open(chat);
  draw();
  drawer("side", false);
  $("ask").focus();
}

function fresh() {
  if (running) stop();
  store.fresh();
  draw();
  drawer("side", false);
  $("ask").focus();
}

function send(text) {
  if (running || !text.trim() || (server && !server.generates)) return;
  const chat = store.chat();
  chat.title ||= text.trim().replace(/\s+/g, " ").slice(0, 60);
  chat.messages.push({ role: "user", content: text });
  $("ask").value = "";
  fit();
  answer(chat);
}

function again(at) {
  const chat = store.current;
  if (running || at < 1) return;
  chat.messages.length = at;
  answer(chat);
}

function answered(calls, texts) {
  const chat = store.current;
  calls.forEach((c, i) => chat.messages.push({ role: "tool", tool_call_id: c.id, content: texts[i] }));
  answer(chat);
}

async function answer(chat) {
  const turn = new Turn(), control = new AbortController();
  const asked = [...chat.messages];
  const message = turn.message;
  running = { chat, control };
  chat.messages.push(message);
  draw();
  busy(true);
  const view = views.at(-1);
  view.show(message, true);
  let due = 0;
  const later = () => {
    due ||= setTimeout(() => {
      due = 0;
      view.show(message, true);
      end();
    }, FRAME);
  };
  try {
    const chats = server?.chat ?? true;
    const response = await fetch(chats ? "v1/chat/completions" : "v1/completions", {
      method: "POST",
      headers: headers({ "Content-Type": "application/json" }),
      body: JSON.stringify(body(asked, store.settings, $("model").value || undefined, chats)),
      signal: control.signal,
    });
    if (!response.ok) throw await errorOf(response);
    for await (const chunk of events(response.body)) {
      turn.take(chunk);
      later();
    }
    if (!message.finish) throw new Error("The connection ended before the answer did.");
  } catch (e) {
    if (e.name === "AbortError") message.finish = "stopped";
    else message.error = wording(e);
    if (e.status === 401) wantKey();
  }
  clearTimeout(due);
  message.stats = turn.stats();
  message.tool_calls = message.tool_calls.filter(Boolean);
  if (message.finish === "stopped") message.tool_calls = [];
  running = null;
  chat.at = Date.now();
  busy(false);
  keep();
  if (store.current === chat) draw();
  say(message.error ? `Error: ${message.error}` : message.finish === "stopped" ? "Stopped" : "The answer is complete");
}

function wording(e) {
  if (e.status === 401) return "This server wants an API key. Set it in the settings, then answer again.";
  if (e.retryAfter) return `${e.message} (in ${e.retryAfter} s)`;
  if (e instanceof TypeError) return "The server cannot be reached.";
  return e.message;
}

const stop = () => running?.control.abort();

function busy(yes) {
  root.classList.toggle("busy", yes);
  $("send").setAttribute("aria-label", yes ? "Stop" : "Send");
  if (yes) say("Answering");
  ready();
}

function notice(words) {
  say(words);
  const made = el("p", { className: "notice", textContent: words });
  document.body.append(made);
  setTimeout(() => made.remove(), 6000);
}

// ------------------------------------------------------------------ the field at the bottom

function ready() {
  $("send").disabled = !running && !$("ask").value.trim();
}

function fit() {
  const ask = $("ask");
  ask.style.height = "auto";
  ask.style.height = `${Math.min(ask.scrollHeight, innerHeight * 0.4)}px`;
  ready();
}

/** To the end of the conversation, if the reader was there. */
function end(always) {
  const box = $("scroll");
  if (always || !box.classList.contains("away")) box.scrollTop = box.scrollHeight;
}

$("scroll").addEventListener("scroll", () => {
  const box = $("scroll"), away = box.scrollHeight - box.scrollTop - box.clientHeight > 80;
  box.classList.toggle("away", away);
  $("down").hidden = !away;
}, { passive: true });
$("down").onclick = () => end(true);
$("form").onsubmit = (e) => {
  e.preventDefault();
  if (running) stop();
  else send($("ask").value);
};
$("ask").oninput = fit;
$("ask").onkeydown = (e) => {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
    e.preventDefault();
    if (!running) send($("ask").value);
  } else if (e.key === "ArrowUp" && !$("ask").value) {
    const last = store.current?.messages.findLast((m) => m.role === "user");
    if (last) {
      e.preventDefault();
      on.edit(last);
    }
  }
};
addEventListener("keydown", (e) => {
  const open = ["panel", "side"].find((n) => root.classList.contains(n));
  if (e.key === "Escape") {
    if (open) drawer(open, false);
    else stop();
  } else if (e.altKey && e.code === "KeyN") {
    e.preventDefault();
    fresh();
  } else if (e.key === "/" && !/INPUT|TEXTAREA|SELECT/.test(document.activeElement.tagName)) {
    e.preventDefault();
    $("ask").focus();
  }
});

// ------------------------------------------------------------------ drawers and settings

function drawer(name, open) {
  root.classList.toggle(name, open);
  $("shade").hidden = !open;
  if (name === "panel") {
    $("panel").inert = !open;
    $("open-panel").setAttribute("aria-expanded", String(open));
    if (open) $("system").focus();
    else if (document.activeElement === document.body) $("open-panel").focus();
  }
}

$("open-panel").onclick = () => drawer("panel", !root.classList.contains("panel"));
$("close-panel").onclick = () => drawer("panel", false);
$("open-side").onclick = () => drawer("side", true);
$("close-side").onclick = () => drawer("side", false);
$("shade").onclick = () => ["panel", "side"].forEach((n) => drawer(n, false));
$("new").onclick = fresh;

function wantKey() {
  drawer("panel", true);
  $("key").focus();
}

function fields() {
  $("sampling").replaceChildren(...NUMBERS.map(([name, label, least, most, step, otherwise]) => {
    const input = el("input", { id: name, name, type: "number", inputMode: "decimal", step, placeholder: otherwise });
    if (least !== null) input.min = least;
    if (most !== null) input.max = most;
    return el("div", { className: "pair" }, el("label", { htmlFor: name, textContent: label }), input);
  }));
  for (const field of $("settings").elements) if (field.name) field.value = field.name === "key" ? store.key : store.settings[field.name] ?? "";
  checkTools();
}

function checkTools() {
  const note = $("tools-note");
  try {
    const found = toolsOf($("tools").value);
    note.textContent = found.length ? `${found.map((t) => t.function.name).join(", ")}: you give the results` : "";
    note.className = "note";
  } catch (e) {
    note.textContent = e.message;
    note.className = "note error";
  }
}

$("settings").oninput = (e) => {
  const { name, value } = e.target;
  if (!name) return;
  if (name === "key") store.key = value.trim();
  else store.settings[name] = value;
  if (name === "tools") checkTools();
  keep();
};
$("settings").onsubmit = (e) => e.preventDefault();
$("settings").onchange = (e) => e.target.name === "key" && look();
$("export").onclick = () => {
  const url = URL.createObjectURL(new Blob([store.export()], { type: "application/json" }));
  el("a", { href: url, download: "thalweg-conversations.json" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
};
$("import").onclick = () => $("file").click();
$("file").onchange = async () => {
  try {
    const found = store.import(await $("file").files[0].text());
    notice(`${found} conversation${found === 1 ? "" : "s"} imported`);
  } catch (e) {
    notice(e.message);
  }
  $("file").value = "";
  list();
};
$("clear").onclick = () => {
  if (!confirm("Delete every conversation in this browser?")) return;
  stop();
  store.clear();
  draw();
};
$("theme").onclick = () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("thalweg.theme", root.dataset.theme);
  } catch { /* for this visit alone */ }
};

// ------------------------------------------------------------------ the server

const share = (v) => `${(100 * v).toFixed(v > 0 && v < 0.1 ? 1 : 0)} %`;

async function look() {
  try {
    const response = await fetch("page/state", { headers: headers(), signal: AbortSignal.timeout(5000) });
    if (response.status === 401) return status("locked", "API key needed");
    if (!response.ok) return status("off", (await errorOf(response)).message);
    take(await response.json());
  } catch {
    status("off", "The server cannot be reached");
  }
}

function status(kind, words) {
  $("dot").className = `dot ${kind}`;
  $("state").textContent = words;
}

function take(now) {
  const first = !server;
  server = now;
  status(now.state === "ready" ? "on" : "off", now.state === "ready" ? "" : now.reason || now.state);
  if (first) introduce();
  const g = now.gauges;
  if (!g) return;
  if (before && g.generated >= before.generated) {
    rates.push(((g.generated - before.generated) * 1000) / Math.max(1, performance.now() - before.at));
    rates = rates.slice(-POINTS);
    const rate = rates.at(-1);
    $("rate").textContent = rate && rate < 10 ? rate.toFixed(1) : Math.round(rate).toLocaleString();
    spark($("spark"), rates);
  }
  before = { generated: g.generated, at: performance.now() };
  $("running").textContent = g.running;
  $("waiting").textContent = g.waiting;
  $("cache").textContent = share(g.cache);
  $("cache-bar").style.width = `${Math.min(100, 100 * g.cache)}%`;
  $("hits").textContent = g.prefix_queries ? share(g.prefix_hits / g.prefix_queries) : "–";
}

function introduce() {
  $("model").replaceChildren(...server.models.map((name) => el("option", { value: name, textContent: name.split("/").pop(), title: name })));
  const facts = Object.entries(server.facts);
  $("facts").replaceChildren(...facts.map(([name, value]) => el("div", {}, el("dt", { textContent: name }), el("dd", { textContent: value, title: value }))));
  for (const [name] of NUMBERS) if (server.sampling[name] != null) $(name).placeholder = server.sampling[name];
  if (!store.current?.messages.length) draw();
}

async function watch() {
  if (!document.hidden) await look();
  setTimeout(watch, LOOK);
}

fields();
draw();
fit();
watch();
if (matchMedia("(hover: hover)").matches) $("ask").focus();
