// The page's logic without a browser. `test_logic.py` runs this beside copies of the page's modules.
import assert from "node:assert/strict";
import test from "node:test";
import { inline, MOST_CELLS, MOST_COLUMNS, parse, safe } from "./markdown.js";
import { sound, Store } from "./store.js";
import { body, events, toolsOf, Turn } from "./stream.js";

const memory = () => {
  const kept = new Map();
  return { getItem: (k) => kept.get(k) ?? null, setItem: (k, v) => kept.set(k, v), kept };
};

test("blocks of markdown", () => {
  const found = parse("# Title\n\ntext\nmore\n\n- a\n  - b\n- c\n\n1. x\n2. y\n\n> said\n\n---\n\n| h | i |\n|---|---|\n| 1 | 2 |");
  assert.deepEqual(found.map((b) => b.kind), ["h", "p", "list", "list", "quote", "hr", "table"]);
  assert.equal(found[2].items.length, 2);
  assert.equal(found[2].items[0][1].kind, "list");
  assert.deepEqual(found[6].rows, [["h", "i"], ["1", "2"]]);
});

test("code is as it was written, also while its fence is open", () => {
  assert.deepEqual(parse("```py\nif a < b:\n    # **no**\n```\nafter")[0], { kind: "code", lang: "py", text: "if a < b:\n    # **no**" });
  assert.deepEqual(parse("```\nhalf")[0].text, "half");
});

test("inline forms", () => {
  assert.deepEqual(inline("a **b *c*** `<d>` e_f_g"), [
    "a ", { kind: "strong", parts: ["b ", { kind: "em", parts: ["c"] }] }, " ", { kind: "code", text: "<d>" }, " e_f_g",
  ]);
  assert.deepEqual(inline("2 * 3 * 4 \\*"), ["2 * 3 * 4 *"]);
});

test("only addresses of the web are links", () => {
  assert.equal(safe("javascript:alert(1)"), "");
  assert.equal(safe("data:text/html,x"), "");
  assert.deepEqual(inline("[x](javascript:alert(1))"), ["[x](javascript:alert(1))"]);
  assert.equal(inline("see https://a.org/b.")[1].href, "https://a.org/b");
});

test("headings, fences and tables as GitHub has them", () => {
  const titles = ["# a ##", "## b#", "# ##", "# c  ", "### d # e #"].map((line) => parse(line)[0]);
  assert.deepEqual(titles.map((h) => [h.level, h.text]), [[1, "a"], [2, "b#"], [1, "##"], [1, "c"], [3, "d # e"]]);
  assert.deepEqual(["```  c++ x", "~~~~js", "```"].map((line) => parse(line)[0].lang), ["c++", "js", ""]);
  for (const text of ["``` a`b", "~~~ a`b", "a | b\n---", "a | b\n--- | --- | ---", "a | b\n--- | x"]) assert.equal(parse(text)[0].kind, "p", text);
  assert.deepEqual(parse("| a |\n|:-:|\n| 1 | 2 |")[0], { kind: "table", rows: [["a"], ["1"]] });
});

test("a table has a bounded number of cells, and what is more is text", () => {
  const wide = (n) => `|${"a|".repeat(n)}\n|${"-|".repeat(n)}\n|${"b|".repeat(n)}`;
  assert.equal(parse(wide(MOST_COLUMNS))[0].rows[1].length, MOST_COLUMNS);
  assert.deepEqual(parse(wide(20000)).map((b) => b.kind), ["p"]);
  assert.deepEqual(parse(`|a|b|\n|-|-|\n|${"c|".repeat(20000)}`)[0].rows[1], ["c", "c"]);
  const [table, rest] = parse("|a|b|\n|-|-|\n" + "|c|d|\n".repeat(20000));
  assert.equal(table.rows.flat().length, MOST_CELLS);
  assert.equal(rest.text.split("\n").length, 20001 - MOST_CELLS / 2);
});

test("hostile lines are read in a time that goes by their length", () => {
  const n = 200000; // a pattern that looks at each pair of characters takes minutes, and its test is ended
  for (const bad of ["a|\n" + " ".repeat(n) + "x", "# a" + " ".repeat(n) + "b", "```" + " ".repeat(n) + "`", "```" + "a".repeat(n) + "`",
    "~".repeat(n) + "`", "* ".repeat(n) + "x", "a|\n" + "-".repeat(n) + "x", "# " + "#".repeat(n) + "b", "a|\n|" + " - |".repeat(n) + "x"]) {
    assert.equal(parse(bad).length, 1, bad.slice(0, 9));
  }
});

test("hostile markdown ends soon", () => {
  for (const bad of ["*", "**a ", "[", "`", "> ", "- ", "_a_", "|", "((", "~~a"]) {
    const began = process.cpuUsage().user;
    for (const b of parse(bad.repeat(20000))) if (b.text) inline(b.text);
    assert.ok(process.cpuUsage().user - began < 20e6, bad);
  }
});

test("a body has what was set and nothing else", () => {
  const settings = { temperature: "0.5", top_k: "", seed: "x", stop: "END\n\n", system: "Be brief." };
  const messages = [
    { role: "user", content: "hi" },
    { role: "assistant", content: "", reasoning: "hm", tool_calls: [{ id: "1", name: "f", arguments: "{}" }] },
    { role: "tool", tool_call_id: "1", content: "42" },
    { role: "assistant", content: "", error: "gone" },
  ];
  const made = body(messages, settings, "m", true);
  assert.equal(made.temperature, 0.5);
  assert.deepEqual(made.stop, ["END"]);
  assert.ok(!("top_k" in made) && !("seed" in made) && !("tools" in made));
  assert.deepEqual(made.messages.map((m) => m.role), ["system", "user", "assistant", "tool"]);
  assert.equal(made.messages[2].tool_calls[0].function.name, "f");
  assert.equal(body([{ role: "user", content: "a" }], {}, "m", false).prompt, "a");
});

test("tools are checked before they are sent", () => {
  assert.throws(() => toolsOf("{"), /not JSON/);
  assert.throws(() => toolsOf("[1]"), /Each tool needs/);
  assert.equal(toolsOf('{"type": "function", "function": {"name": "f"}}').length, 1);
});

test("events come whole, whatever the pieces", async () => {
  const text = 'data: {"a":"é"}\n\n: ping\n\ndata: {"b":2}\n\ndata: [DONE]\n\n';
  const bytes = new TextEncoder().encode(text);
  for (let size = 1; size < 9; size++) {
    const stream = new ReadableStream({
      start(c) {
        for (let i = 0; i < bytes.length; i += size) c.enqueue(bytes.slice(i, i + size));
        c.close();
      },
    });
    const seen = [];
    for await (const e of events(stream)) seen.push(e);
    assert.deepEqual(seen, [{ a: "é" }, { b: 2 }]);
  }
});

test("a turn is put together from its deltas", () => {
  let clock = 0;
  const turn = new Turn(() => (clock += 100));
  const delta = (d, finish_reason = null) => turn.take({ choices: [{ delta: d, finish_reason }] });
  delta({ role: "assistant", content: null });
  delta({ reasoning: "so " });
  delta({ reasoning: "on" });
  delta({ content: "Hel" });
  delta({ content: "lo" });
  delta({ tool_calls: [{ index: 1, id: "c", function: { name: "f", arguments: '{"a"' } }] });
  delta({ tool_calls: [{ index: 1, function: { arguments: ":1}" } }] }, "tool_calls");
  turn.take({ choices: [], usage: { completion_tokens: 6 } });
  assert.equal(turn.message.reasoning, "so on");
  assert.equal(turn.message.content, "Hello");
  assert.deepEqual(turn.message.tool_calls[1], { id: "c", name: "f", arguments: '{"a":1}' });
  assert.equal(turn.stats().tokens, 6);
  assert.ok(turn.stats().rate > 0);
  assert.throws(() => turn.take({ error: { message: "no", code: 500 } }), /no/);
});

test("conversations are kept, and what is not one is left out", () => {
  const local = memory(), store = new Store(local, memory());
  store.chat().title = "first";
  store.key = "secret";
  store.save();
  assert.ok(!JSON.stringify([...local.kept]).includes("secret"));
  const again = new Store(local, memory());
  assert.equal(again.chats[0].title, "first");
  const other = new Store(memory(), memory());
  assert.equal(other.import(store.export()), 1);
  assert.equal(other.import(store.export()), 0);
  assert.throws(() => other.import("{}"), /no conversations/);
  assert.ok(!sound({ id: "1", title: "", at: 1, messages: [{ role: "system", content: "" }] }));
  local.setItem("thalweg.chats", "{broken");
  assert.deepEqual(new Store(local, memory()).chats, []);
});
