"""Structured output: what a request may say of its text's form, judged, compiled, and turned into masks of allowed tokens.

`asked` is what a client wants (JSON schema, regex, choices, EBNF, Lark, structural tags). `convert` turns that into a
`source`: a grammar that llguidance compiles. Both run in a child process with limits (`judge`, `cell`), so nothing enters
an engine that was not compiled before. The engine compiles it again (`compiled`) and follows each sequence with a
`matcher`. A matcher's state is a function of the tokens: preemption, prefix hits and replay need nothing else.

A source may begin with free text: `GrammarSource.free_until` names the token ids that end it. Up to and with the first of them
every token is allowed, so the text before is that of a run without a grammar. The grammar begins with the token after.
So reasoning, a marker and a schema are one object.

What a grammar of JSON cannot say is taken out of its masks: `guard` keeps keys from coming twice, `keys` keeps objects from
wanting a key that is not left. `regexes` simplifies expressions and lists what they match.

Knows no framework, no server, no request. Only `compiled` imports llguidance.
"""
