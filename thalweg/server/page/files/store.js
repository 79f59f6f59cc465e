// Conversations and settings, in this browser alone. The key lives in the tab.

const CHATS = "thalweg.chats", SETTINGS = "thalweg.settings", KEY = "thalweg.key";

export const id = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 8);

function read(area, name, otherwise) {
  try {
    return JSON.parse(area.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export class Store {
  constructor(local = globalThis.localStorage, tab = globalThis.sessionStorage) {
    this.local = local;
    this.tab = tab;
    this.chats = read(local, CHATS, []).filter(sound);
    this.settings = read(local, SETTINGS, {});
    this.key = read(tab, KEY, "");
    this.current = this.chats[0] ?? null;
  }

  open(chat) {
    this.current = chat;
  }

  fresh() {
    this.current = null;
  }

  /** The open conversation, made if there is none. */
  chat() {
    if (!this.current) {
      this.current = { id: id(), title: "", messages: [], at: Date.now() };
      this.chats.unshift(this.current);
    }
    return this.current;
  }

  remove(chat) {
    this.chats = this.chats.filter((c) => c !== chat);
    if (this.current === chat) this.current = null;
    return this.save();
  }

  clear() {
    this.chats = [];
    this.current = null;
    return this.save();
  }

  /** false: the browser has no room, or refuses. */
  save() {
    try {
      this.local.setItem(CHATS, JSON.stringify(this.chats));
      this.local.setItem(SETTINGS, JSON.stringify(this.settings));
      this.tab.setItem(KEY, JSON.stringify(this.key));
      return true;
    } catch {
      return false;
    }
  }

  export() {
    return JSON.stringify({ thalweg: 1, chats: this.chats }, null, 1);
  }

  /** How many came in. Throws with words if the text is no export. */
  import(text) {
    let made;
    try {
      made = JSON.parse(text);
    } catch {
      throw new Error("This file is not JSON");
    }
    if (!Array.isArray(made?.chats)) throw new Error("This file holds no conversations");
    const have = new Set(this.chats.map((c) => c.id));
    const found = made.chats.filter((c) => sound(c) && !have.has(c.id));
    this.chats = [...found, ...this.chats].sort((a, b) => b.at - a.at);
    this.save();
    return found.length;
  }
}

const ROLES = ["user", "assistant", "tool"];

/** Is it a conversation of ours, every field of the type that is shown? */
export function sound(c) {
  const text = (v) => v === undefined || typeof v === "string";
  const call = (t) => [t?.id, t?.name, t?.arguments].every((v) => typeof v === "string");
  return typeof c?.id === "string" && typeof c.title === "string" && Number.isFinite(c.at) && Array.isArray(c.messages) &&
    c.messages.every((m) => ROLES.includes(m?.role) && typeof m.content === "string" && text(m.reasoning) && text(m.error) &&
      (m.tool_calls === undefined || (Array.isArray(m.tool_calls) && m.tool_calls.every(call))));
}
