"""Weight formats: how quantised checkpoints are written, and the canonical codes, scales and zeros they hold. Knows no
device and no kernel. This version rounds dense checkpoints itself (online.py); `checkpoint.config` refuses quantised ones in
words."""
