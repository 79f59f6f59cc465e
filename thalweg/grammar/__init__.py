"""Structured output: validates and compiles the grammars of requests, and computes masks of allowed tokens.

A `GrammarRequest` is a client's JSON schema, regex, choices, EBNF, Lark or structural tag. `convert` turns it into a
`GrammarSource`: a grammar that llguidance compiles. It is converted and compiled in a child process with limits (`judge`,
`cell`), so every grammar that enters an engine has been compiled once. The engine compiles it again (`compiled`) and follows
each sequence with a `matcher`. A matcher's state is a function of the tokens: preemption, prefix hits and replay need nothing
else.

A source may begin with free text: `GrammarSource.free_until` gives the token ids that end it. Every token is allowed up to
and including the first such id, so the text before is that of a run without a grammar. The grammar begins with the next token.
Reasoning, a marker and a schema are thus one object.

Masks exclude two faults that JSON grammars cannot express: `guard` prevents repeated keys, and `keys` prevents objects that
need a key when none is left. `regexes` simplifies expressions and lists their matches.

This room imports no tensor framework and no server. Only `compiled` imports llguidance.
"""
