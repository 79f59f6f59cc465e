"""Sounds from files to spectra: other people's readers and writers decide; what is wrong with a file is said in words."""

from __future__ import annotations

import importlib.util
import io
import itertools
import os
import signal
import struct
import wave
from collections.abc import Iterator

import numpy as np
import pytest
import scipy.signal
import transformers

from thalweg.errors import RequestError
from thalweg.media.audio_decoder import AudioDecoder, samples_of
from thalweg.media.audio_windows import windows
from thalweg.media.mel import HOP, RATE, log_mel
from thalweg.media.resample import resample


@pytest.fixture(scope="module")
def gate() -> Iterator[AudioDecoder]:
    made = AudioDecoder(1, 3.0)
    yield made
    made.close()


def tones(rate: int, seconds: float = 0.5) -> np.ndarray:
    t = np.arange(int(rate * seconds)) / rate
    return 0.4 * np.sin(2 * np.pi * 440 * t) + 0.2 * np.sin(2 * np.pi * 1234 * t)


def written(samples: np.ndarray, rate: int, width: int) -> bytes:
    """By the standard library: samples [n, channels] in -1..1 as PCM of so many bytes."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate)
        whole = np.round(samples * (2 ** (8 * width - 1) - 1)).astype("<i8")
        raw = (whole + 128 * (width == 1)).reshape(-1, 1).view(np.uint8).reshape(-1, 8)[:, :width]
        file.writeframes(raw.tobytes())
    return out.getvalue()


def floats(samples: np.ndarray, rate: int, kind: str) -> bytes:
    data = samples.astype(kind).tobytes()
    bits = np.dtype(kind).itemsize * 8
    form = struct.pack("<HHIIHH", 3, samples.shape[1], rate, 0, 0, bits)
    chunks = (
        b"fmt " + struct.pack("<I", len(form)) + form + b"LIST\x03\0\0\0abc\0" + b"data" + struct.pack("<I", len(data)) + data
    )
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def test_wav_files(gate):
    mono = tones(RATE)
    for width, off in ((1, 2 / 128), (2, 1e-4), (3, 1e-5), (4, 1e-5)):
        got = gate.decode(written(mono[:, None], RATE, width))
        np.testing.assert_allclose(got, mono, atol=off, err_msg=f"{width} bytes")
    both = np.stack([mono, 0.5 * mono], 1)
    for data in (written(both, RATE, 2), floats(both, RATE, "<f4"), floats(both, RATE, "<f8")):
        np.testing.assert_allclose(gate.decode(data), 0.75 * mono, atol=1e-4)
    open_end = bytearray(written(mono[:, None], RATE, 2))
    open_end[40:44] = b"\xff\xff\xff\xff"  # as a stream is written
    np.testing.assert_allclose(gate.decode(bytes(open_end)), mono, atol=1e-4)
    got = gate.decode(written(tones(44_100)[:, None], 44_100, 2))
    np.testing.assert_allclose(got[200:-200], mono[200:-200], atol=1e-3)


def test_files_that_are_refused(gate):
    good = written(tones(RATE)[:, None], RATE, 2)
    text = "no WAV file" if importlib.util.find_spec("soundfile") is None else "no audio file"
    wrong = {
        "it is empty": b"", text: b"what is said", "without samples": good[:36], "before their format": good[:12] + good[36:],
        "lasts 4 seconds": written(np.zeros((4 * RATE, 1)), RATE, 2), "samples a second": good[:24] + b"\1\0\0\0" + good[28:],
        "channels": good[:22] + b"\0\0" + good[24:], "12 bits": good[:34] + b"\x0c\0" + good[36:],
        "truncated": good[:16] + b"\4\0\0\0" + good[20:24] + b"data\0\0\0\0",
        "at a lower rate": written(np.zeros((400_000, 1)), 400_000, 1),
    }  # fmt: skip
    for words, data in wrong.items():
        with pytest.raises(RequestError, match=f"file: .*{words}"):
            gate.decode(data)
    assert gate.decode(good).size == RATE // 2


def test_a_lost_process_is_replaced(gate):
    good = written(tones(RATE)[:, None], RATE, 2)
    gate.decode(good)
    for pid in gate.pids():
        os.kill(pid, signal.SIGKILL)
    assert gate.decode(good).size == RATE // 2


@pytest.mark.skipif(importlib.util.find_spec("soundfile") is None, reason="soundfile is not installed")
@pytest.mark.parametrize("form", ["FLAC", "OGG", "MP3"])
def test_other_forms(form, gate):
    import soundfile

    out, want = io.BytesIO(), tones(RATE, 1.0)
    soundfile.write(out, want, RATE, format=form)
    got = gate.decode(out.getvalue())
    assert abs(got.size - want.size) < 2000
    assert np.corrcoef(got[: want.size][2000:12000], want[2000:12000])[0, 1] > 0.99
    with pytest.raises(RequestError, match=r"no audio file that can be decoded"):
        gate.decode(out.getvalue()[:40])


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000])
@pytest.mark.sampled(2)
def test_resampling(rate):
    got, want = resample(tones(rate).astype(np.float32), rate, RATE), tones(RATE)
    assert got.size == -(-tones(rate).size * RATE // rate)
    n = min(got.size, want.size)
    np.testing.assert_allclose(got[300 : n - 300], want[300 : n - 300], atol=1e-3)
    noise = np.random.default_rng(1).normal(size=rate // 4).astype(np.float32)
    mine, theirs = resample(noise, rate, RATE), scipy.signal.resample_poly(noise, RATE, rate)
    low = scipy.signal.firwin(301, 0.35 * min(rate, RATE) / RATE * 2)  # where both let everything through
    a, b = (np.convolve(x, low, "valid") for x in (mine, theirs[: mine.size]))
    assert np.abs(a - b).max() < 0.02 * np.abs(b).max()


def test_nothing_above_half_of_the_rate_comes_back():
    t = np.arange(48_000) / 48_000
    assert np.abs(resample(np.sin(2 * np.pi * 9_000 * t).astype(np.float32), 48_000, RATE))[300:-300].max() < 1e-4


@pytest.mark.parametrize("bins", [80, 128])
def test_spectra_are_those_of_transformers(bins):
    theirs = transformers.WhisperFeatureExtractor(feature_size=bins, chunk_length=2)
    for wave_ in (tones(RATE, 1.3), np.random.default_rng(2).normal(size=2 * RATE), np.zeros(100)):
        sound = wave_.astype(np.float32)
        want = theirs(sound, sampling_rate=RATE, return_tensors="np").input_features[0]
        np.testing.assert_allclose(log_mel(sound, bins, 2 * RATE // HOP), want, atol=1e-4)


def test_samples_of_python():
    mono = tones(RATE).astype(np.float32)
    for given in (
        mono,
        mono.tolist(),
        (mono, RATE),
        np.stack([mono, mono]),
        np.stack([mono, mono], 1),
        (mono * 32767).astype(np.int16),
    ):
        np.testing.assert_allclose(samples_of(given, "audio"), mono, atol=1e-4)
    assert samples_of((mono, 8_000), "audio").size == 2 * mono.size
    for wrong in ("sound", 5, np.zeros((2, 2, 2)), [], np.array([np.inf]), ["a"]):
        with pytest.raises(RequestError, match="audio"):
            samples_of(wrong, "audio")


def test_long_sounds_are_cut_where_they_are_quiet():
    rng = np.random.default_rng(4)
    sound = rng.normal(size=100_000).astype(np.float32)
    for at in (29_000, 57_500):
        sound[at : at + 2_000] *= 1e-3
    cuts = windows(sound, 30_000, 4_000)
    assert (cuts[0].begin, cuts[-1].end) == (0, 100_000)
    assert all(a.end == b.begin and 0 < a.end - a.begin <= 30_000 for a, b in itertools.pairwise(cuts))
    assert 29_000 <= cuts[0].end <= 31_000
    assert 57_500 <= cuts[1].end <= 59_500
    assert windows(sound[:30_000], 30_000, 4_000) == [(0, 30_000)]
    assert len(windows(np.zeros(90_001, np.float32), 30_000, 4_000)) == 4
