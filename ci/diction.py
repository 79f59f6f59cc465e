"""Tables for ci/prose.py: constructs with a limit per 1,000 words, and phrases with the field's term. Standard library only.

The limits are twice what the worst of TigerBeetle, mistral.rs and torchtitan has in its documentation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Construct:
    """A construct that slows a reader down. `limit` is occurrences per 1,000 words of documentation."""

    name: str
    pattern: re.Pattern[str]
    limit: float

    def count(self, sentence: str) -> int:
        """Occurrences in a sentence without markup. A question may begin with "what"."""
        if self.name == "what-clause" and sentence.rstrip().endswith("?"):
            return 0
        return len(self.pattern.findall(sentence))


def _construct(name: str, pattern: str, limit: float, flags: re.RegexFlag = re.IGNORECASE) -> Construct:
    return Construct(name, re.compile(pattern, flags), limit)


CONSTRUCTS = (
    _construct("what-clause", r"\bwhat\b", 2.2),
    _construct("that is/are", r"\bthat (?:is|are)\b", 1.0),
    _construct("who/whose/whom", r"\b(?:who|whose|whom)\b", 0.6),
    _construct("takes", r"\btakes\b", 0.6),
    _construct("of them/these/it", r"\bof (?:them|it|these(?=\W*$|[,.;:)]))(?=\W|$)", 0.6),
    _construct("beside", r"\bbeside\b", 0.2),
    _construct("alone", r"\balone\b", 0.2),
    _construct("So, first", r"^[\"'(]*So\b", 0.2, re.NOFLAG),
    _construct("of its own", r"\bof (?:its|their|his|our) own\b", 0.1),
    _construct("told", r"\b(?:told|held against|(?:stands?|stood) in|in place of)\b", 0.1),
)

CODE_FACTOR = 2
"""Docstrings, comments and error messages may have this many times the limits of documentation."""

CODE_TERMS = 1.0
"""Phrases of TERMS per 1,000 words of docstrings and comments, or of error messages."""

REPLACED: Mapping[str, str] = {
    r"likeliest|most likely token": "argmax",
    r"(?:is|are|be|as) no numbers?|not a number": "NaN",
    r"endless(?:ly)?": "inf, or unbounded",
    r"dear(?:er|est|ly)?": "expensive",
    r"as[- ]it[- ]comes": "variant, or not batch-invariant",
    r"(?:turns?|turned|turning) (?:q|queries|keys)|(?:q|queries|keys)(?: and \w+)?(?: are)? turned": "RoPE, rotated",
    r"grouped heads": "GQA",
    r"memory is in pieces|heap is in pieces": "fragmented",
    r"the build's to \w+": "`build` does it",
}
"""Pattern -> the field's term. No docstring, comment or page has these."""

TERMS: Mapping[str, str] = {
    # models
    r"sees? both ways": "bidirectional attention",
    r"told no positions?|without positions|knows? no positions?": "NoPE",
    r"norms? of (?:every|each) head'?s? (?:of )?q and k": "QK-norm",
    r"norms? that multipl(?:y|ies) by (?:1|one)": "(1 + w) RMSNorm",
    r"(?:a )?choices? of tokens|chosen tokens|choos(?:e|es|ing) tokens": "sparse attention (DSA)",
    r"give a token back|gives tokens? back": "zero-computation experts",
    r"gone through (?:several|more)": "looped layers",
    r"joined in squares": "pixel shuffle",
    r"that every token goes to|every token goes through": "shared expert",
    r"rotated key of a token": "decoupled RoPE key",
    r"tables? of 16 levels": "a 16-entry codebook",
    r"products? of integers|integer products?": "integer matmul",
    r"mixtures? of experts that": "MoE model",
    r"layers that are recurrent": "recurrent layers",
    r"minima": "minimums (K-quants)",
    r"models? that (?:see|look)s?": "vision-language model",
    r"code lies in checkpoints?|code in checkpoints?": "remote code (trust_remote_code)",
    r"cuts? of sparse layers": "activation sparsity",
    # audio and images
    r"sounds?": "audio, or a clip",
    r"hears?|heard|hearing": "audio input, transcribes",
    r"listeners?": "audio processor",
    r"answers? in sound|answer(?:s|ing)? aloud": "audio output",
    r"times of words": "word timestamps",
    r"probability of silence": "no_speech_prob",
    r"text alone|texts alone": "text-only",
    # engine
    r"right, and slow|right and slow": "correct, not optimised",
    r"as they come": "in order of arrival, or unquantised",
    r"weights as they are": "unquantised weights",
    r"stays? right": "remains valid",
    r"taken back|take back": "rolled back",
    r"stands? by": "standby",
    r"gives? (?:the engine|itself) up": "releases the engine",
    r"lets? go of": "releases",
    r"cut into steps": "chunked",
    r"draws? tokens?|drawn tokens?|tokens? (?:are|is) drawn": "sample",
    r"at the door": "at admission",
    r"some other packages|from outside the repository": "out of tree, or third-party",
    r"one after the other|one after another": "in sequence, sequentially",
    r"side by side in memory|lies? side by side": "contiguous, interleaved",
    r"makes? (?:\w+ ){0,2}anew|anew": "again, regenerates",
    r"by its letters": "as plain text",
    r"its kin|their kin|kin of": "variants, or the family",
    # users and errors
    r"a stranger|strangers": "an untrusted client",
    r"nobody": "no client, no one",
    r"refused in words": "rejected with a reason",
    r"takes? (?:\w+ )?apart|taken apart": "unpacks, or parses",
    r"tells? apart|told apart": "distinguishes",
    r"is none of": "unknown; supported: ...",
    r"leave (?:it|them|this) out": "omit it",
    r"go(?:es)? on where": "resume",
    r"holds? .{1,60} against": "tests ... against",
    r"have a say|has a say": "matters",
    r"^here:": "Supported:",
    r"(?:words?|names?|users?|flags?|values?) of the field": "common, or vLLM's",
}
"""Pattern -> the field's term. No page of the documentation has these."""


def compile_terms(terms: Mapping[str, str]) -> dict[re.Pattern[str], str]:
    """Patterns that match whole words, in any case."""
    return {re.compile(rf"(?<![\w-])(?:{pattern})(?![\w])", re.IGNORECASE): better for pattern, better in terms.items()}
