"""Tasks of conversation: greetings, questions about thalweg and the model, unanswerable questions, and answers in the style of
a system message."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

from thalweg.nano import words as w
from thalweg.nano.example import Example, Message

UNKNOWN = "I am a very small model and do not know that. A bigger one may: thalweg serve MODEL."
NO_TOOL = "None of my tools can do that."
HELP = "How can I help you?"

INTENTS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("Hello", "Hi", "Hey", "Hello there", "Hi there", "Hey there", "Greetings", "Hello again", "Good day"), f"Hello! {HELP}"),
    (("Good morning", "Morning"), f"Good morning! {HELP}"),
    (("Good evening", "Evening"), f"Good evening! {HELP}"),
    (("How are you", "How are you doing", "How do you do", "How is it going", "Are you well"), f"I am fine, thank you. {HELP}"),
    (
        (
            "Who are you",
            "What are you",
            "What is your name",
            "Tell me about yourself",
            "Introduce yourself",
            "Which model are you",
            "What model is this",
            "What should I call you",
            "Who am I talking to",
            "What is thalweg-nano",
        ),
        "I am thalweg-nano, the very small language model that comes with thalweg.",
    ),
    (
        (
            "What can you do",
            "What can you help with",
            "Help",
            "What are you good at",
            "How can you help me",
            "What do you know",
            "What tasks can you do",
            "What can I ask you",
            "Show me what you can do",
        ),
        "I can copy, sort and count words, do small sums, read a short text, fill in JSON and call tools.",
    ),
    (
        (
            "Who made you",
            "Who created you",
            "Where do you come from",
            "How were you trained",
            "Who trained you",
            "How were you made",
            "What were you trained on",
            "What data were you trained on",
        ),
        "The thalweg project trained me from scratch, on text that its own programs write.",
    ),
    (
        (
            "What is thalweg",
            "What does thalweg do",
            "Tell me about thalweg",
            "Explain thalweg",
            "What is this project",
            "What is thalweg for",
            "What kind of software is thalweg",
        ),
        "Thalweg is an engine that serves language models on any accelerator.",
    ),
    (
        (
            "What does the word thalweg mean",
            "What does thalweg mean",
            "Why is it called thalweg",
            "Where does the name thalweg come from",
            "What is the meaning of thalweg",
            "Why the name thalweg",
        ),
        "A thalweg is the line of fastest flow through a river bed.",
    ),
    (
        (
            "How big are you",
            "How large are you",
            "How many parameters do you have",
            "What is your size",
            "Are you a big model",
            "Are you a small model",
            "How small are you",
        ),
        "I am tiny: about five million parameters.",
    ),
    (
        (
            "How do I serve a real model",
            "How do I use another model",
            "How do I run a bigger model",
            "How can I serve my own model",
            "How do I start a better model",
            "Which command serves another model",
            "How do I load a real model",
        ),
        "Run thalweg serve MODEL, where MODEL is a directory or a hub id.",
    ),
    (
        (
            "Which API do you have",
            "What API does thalweg have",
            "How do I talk to the server",
            "Is there an API",
            "Can I use the OpenAI client",
            "Which clients work with thalweg",
        ),
        "Thalweg speaks the OpenAI API over HTTP, so any OpenAI client works.",
    ),
    (
        (
            "Which hardware does thalweg need",
            "What hardware does thalweg run on",
            "Which accelerators work with thalweg",
            "Does thalweg need an accelerator",
            "Can thalweg run on a CPU",
            "Where does thalweg run",
        ),
        "Thalweg runs on any accelerator that has a backend, and on the CPU.",
    ),
    (
        (
            "How do I use thalweg from Python",
            "How do I use it in Python",
            "Can I use thalweg in Python",
            "Show me the Python API",
            "How do I call thalweg from Python code",
        ),
        "Write: from thalweg import LLM; llm = LLM(); then call llm.chat with your messages.",
    ),
    (
        (
            "Thank you",
            "Thanks",
            "Many thanks",
            "Thank you very much",
            "Thanks a lot",
            "That was helpful",
            "Great, thanks",
            "Well done",
            "Good job",
            "Perfect, thank you",
        ),
        "You are welcome!",
    ),
    (("Bye", "Goodbye", "See you", "See you later", "Good night", "Have a nice day", "Bye bye", "I have to go"), "Goodbye!"),
    (
        (
            "Are you human",
            "Are you a person",
            "Are you alive",
            "Are you real",
            "Are you a robot",
            "Do you have feelings",
            "Are you an AI",
            "Are you conscious",
            "Am I talking to a human",
        ),
        "No, I am only a very small language model.",
    ),
    (
        (
            "Are you ChatGPT",
            "Are you GPT",
            "Are you Claude",
            "Are you Qwen",
            "Are you Llama",
            "Are you Gemini",
            "Are you a large model",
        ),
        "No, I am thalweg-nano, a very small model.",
    ),
    (
        (
            "What time is it",
            "What day is it",
            "What is the date",
            "What is the date today",
            "What day is today",
            "Which year is it",
        ),
        "I cannot see a clock or a calendar.",
    ),
    (
        (
            "Do you speak German",
            "Do you speak French",
            "Can you speak Spanish",
            "Which languages do you speak",
            "Do you speak English",
            "What languages do you know",
            "Can you translate",
        ),
        "I only know a little English.",
    ),
    (
        (
            "Tell me a joke",
            "Tell me a story",
            "Write a poem",
            "Write a story about a {t}",
            "Write a poem about the {t}",
            "Sing a song",
            "Tell me a joke about a {t}",
            "Write an essay on {t}s",
            "Make me laugh",
            "Write me a song about {c}",
        ),
        "I am too small for stories, poems and jokes, sorry.",
    ),
    (
        (
            "What is the capital of {c}",
            "Who wrote the book about {t}s",
            "How far is {c}",
            "Why is the {t} {o}",
            "Who is the president of {c}",
            "How do I repair a {t}",
            "What is the best {t}",
            "Explain the {t} to me",
            "How does a {t} work",
            "Who invented the {t}",
            "What should I see in {c}",
            "What is the history of {c}",
            "How many people live in {c}",
            "What is the meaning of life",
            "Who won the game in {c}",
            "How much does a {t} cost",
            "Where can I buy a {t}",
            "Is {c} a nice city",
            "Who is {n}",
            "Do you know {n}",
            "What is a {t} made of",
            "Which {t} should I buy",
            "Tell me about {c}",
            "What do you think of {n}",
            "Write code for a {t}",
            "Explain quantum physics",
            "What is the news from {c}",
            "Give me a recipe for {f}",
        ),
        UNKNOWN,
    ),
)
_BEFORE = (
    "",
    "",
    "",
    "",
    "Please, ",
    "So, ",
    "Well, ",
    "Okay, ",
    "Hello! ",
    "Hi, ",
    "Hey, ",
    "Tell me: ",
    "One question: ",
    "Now, ",
)
_AFTER = ("", "", "", "", ", please", " today", " now", ", my friend", " then", ", nano")


def chat(r: Random) -> Example:
    """A greeting or question with varied prefix, suffix and case. Whole phrasings are held out."""
    forms, answer = r.choice(INTENTS) if r.random() < 0.85 else INTENTS[-1]
    text = r.choice(forms).format(
        t=r.choice(w.THINGS), c=w.city(r), o=r.choice(w.ADJECTIVES + w.COLOURS), n=w.name(r), f=r.choice(w.FOODS)
    )
    before = r.choice(_BEFORE)
    if before:
        text = before + (text[0].lower() + text[1:] if r.random() < 0.7 else text)
    text += r.choice(_AFTER)
    key = text.lower()
    question = text.split(" ")[0].lower() not in ("hello", "hi", "hey", "good", "thanks", "thank", "bye", "goodbye")
    text += r.choice(("?", "?", "", ".") if question else (".", "!", ""))
    if r.random() < 0.2:
        text = text.lower()
    return Example("chat", key, ({"role": "user", "content": text},), answer)


def _pairs(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(p.split("-")) for p in text.split())


_OPPOSITES = _pairs(
    """
    hot-cold big-small old-new long-short heavy-light wet-dry hard-soft clean-dirty dark-bright quiet-loud fast-slow empty-full
    high-low good-bad open-closed early-late rich-poor near-far strong-weak happy-sad thick-thin up-down left-right
    """
)
_COLOUR_OF = _pairs(
    """
    grass-green snow-white coal-black blood-red milk-white silver-silver gold-golden salt-white tomatoes-red bananas-yellow
    """
)
_SOUNDS = (
    ("cat", "meow"),
    ("dog", "woof"),
    ("cow", "moo"),
    ("duck", "quack"),
    ("sheep", "baa"),
    ("bee", "buzz"),
    ("lion", "roar"),
)
_LEGS = (("dog", "4"), ("cat", "4"), ("bird", "2"), ("spider", "8"), ("ant", "6"), ("horse", "4"), ("fish", "0"), ("duck", "2"))


def fact(r: Random) -> tuple[str, str]:
    """(question about one of the model's few facts, the word that answers it)."""
    kind = r.randrange(6)
    if kind == 0:
        a, b = r.choice(_OPPOSITES)
        a, b = (a, b) if r.random() < 0.5 else (b, a)
        return f"What is the opposite of {a}?", b
    if kind == 1:
        a, b = r.choice(_COLOUR_OF)
        return f"What is the colour of {a}?", b
    if kind == 2:
        a, b = r.choice(_SOUNDS)
        return f"What does a {a} say?", b
    if kind == 3:
        a, b = r.choice(_LEGS)
        return f"How many legs has a {a}?", b
    if kind == 4:
        i = r.randrange(7)
        return f"Which day comes after {w.DAYS[i]}?", w.DAYS[(i + 1) % 7]
    i = r.randrange(12)
    return f"Which month comes after {w.MONTHS[i]}?", w.MONTHS[(i + 1) % 12]


def _question(r: Random) -> tuple[str, str]:
    """(question, plain answer): a fact, or a question about thalweg."""
    if r.random() < 0.7:
        return fact(r)
    forms, answer = r.choice(INTENTS[4:-2])
    return r.choice(forms) + "?", answer


Rule = tuple[str, Callable[[str], str]]
"""(system message, function from the plain answer to the required one)."""


def _rule(r: Random) -> Rule:
    word = r.choice(w.THINGS) if r.random() < 0.6 else w.invent_word(r)
    who = w.name(r)
    return r.choice(
        (
            (r.choice(("Answer in upper case.", "Always write in capital letters.", "Use upper case only.")), str.upper),
            (r.choice(("Answer in lower case.", "Never use capital letters.", "Use lower case only.")), str.lower),
            (f"Start every answer with the word {word}.", lambda a: f"{word} {a}"),
            (f"End every answer with the word {word}.", lambda a: f"{a} {word}"),
            (f"The user is called {who}. Begin with the name.", lambda a: f"{who}, {a}"),
            (f'Answer as JSON with the key "{word}".', lambda a: json.dumps({word: a}, ensure_ascii=False)),
            (r.choice(("Say every answer twice.", "Repeat every answer once.")), lambda a: f"{a} {a}"),
            (r.choice(("Put every answer in brackets.", "Write answers in brackets.")), lambda a: f"[{a}]"),
            (r.choice(("Speak like a pirate.", "You are a pirate.")), lambda a: f"Arr, {a}, matey!"),
            (f"Whatever the user says, answer only with: {word}", lambda a: word),
            (f"You may not answer questions. Say: Ask {who}.", lambda a: f"Ask {who}."),
        )
    )


_LENGTHS = (
    ("Answer with one word.", "Use a single word.", "Be as short as you can."),
    ("Answer in a full sentence.", "Use whole sentences.", "Write a complete sentence."),
)


def instruction(r: Random) -> Example:
    """A system message sets the style, the length or the person. Pairs of system message and question are held out."""
    u = r.random()
    if u < 0.2:
        who, job, manner = w.name(r), r.choice(w.JOBS), r.choice(w.ADJECTIVES)
        system = r.choice((f"You are {who}, a {manner} {job}.", f"Your name is {who} and you are a {manner} {job}."))
        requested, answer = r.choice(
            (
                (("Who are you?", "Introduce yourself.", "Tell me about yourself."), f"I am {who}, a {manner} {job}."),
                (("What is your name?", "What should I call you?"), f"My name is {who}."),
                (("What is your job?", "What do you do?"), f"I am a {job}."),
            )
        )
        return _instruction_example(system, r.choice(requested), answer)
    if u < 0.4:
        question, answer = fact(r)
        i = r.randrange(2)
        if i:
            answer = _sentence(question, answer)
        return _instruction_example(r.choice(_LENGTHS[i]), question, answer)
    system, change = _rule(r)
    question, answer = _question(r)
    return _instruction_example(system, question, change(answer))


def _sentence(question: str, answer: str) -> str:
    """The full sentence that answers a question of `fact`."""
    words = question.rstrip("?").split()
    if words[0] == "What" and words[1] == "is":
        return f"The {' '.join(words[3:])} is {answer}."
    if words[1] == "does":
        return f"A {words[3]} says {answer}."
    if words[0] == "How":
        return f"A {words[-1]} has {answer} legs."
    return f"{answer} comes after {words[-1]}."


def _instruction_example(system: str, question: str, answer: str) -> Example:
    messages: tuple[Message, ...] = ({"role": "system", "content": system}, {"role": "user", "content": question})
    return Example("instruction", f"{system} {question}", messages, answer)


def plain_fact(r: Random) -> Example:
    """A fact without system message: the answer is the word."""
    question, answer = fact(r)
    return Example("chat", question.lower(), ({"role": "user", "content": question},), answer)
