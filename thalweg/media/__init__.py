"""Media in requests: images, audio, and kinds of installed packages.

`gate` decides where bytes may come from. `decoders` reads files in sandboxed processes. `kinds` has a row for each kind, and
`processors` and `audio_processors` have the settings of each model family.
"""
