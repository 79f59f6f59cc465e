"""Weight formats: how quantised checkpoints are written, and the canonical codes, scales and zeros they hold. Knows no
device and no kernel. This version serves dense weights only; `checkpoint.config` refuses the others in words."""
