"""SPHERE, RIFF and FLAC files are read to the sample, or refused in words."""

from __future__ import annotations

import hashlib
import io
import struct
import tarfile
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from enrnn.tasks._audio import decode
from enrnn.tasks._flac import FIXED_PREDICTORS
from tests._record import Recorder
from tests.conformance._errors import raised_by
from tests.tasks._files import FlacWriter, noise, packed, real, riff, sphere

SAMPLES = noise(300, seed=0)


def refusal(content: bytes) -> str:
    error = raised_by(lambda: decode(content))
    assert type(error) is ValueError
    return str(error)


@pytest.mark.parametrize("order", ["01", "10"])
@pytest.mark.parametrize("channels", [1, 2])
def test_sphere_in_both_byte_orders(order: str, channels: int) -> None:
    recording = decode(sphere(SAMPLES, order=order, channels=channels))
    assert recording.samples.tolist() == SAMPLES[::channels].tolist()
    assert (recording.samples.dtype, recording.rate) == (torch.int16, 16000)


def test_sphere_headers_of_other_sizes_and_with_other_fields() -> None:
    plain = sphere(SAMPLES, utterance_id="-s10 vmh0_si836", sample_coding="-s3 pcm", sample_min="-i -6058")
    longer = plain.replace(b"   1024\n", b"   2048\n")[:1024].ljust(2048) + packed(SAMPLES)
    for content in (plain, longer, plain + b"and what follows"):
        assert decode(content).samples.tolist() == SAMPLES.tolist()


def test_what_is_wrong_with_a_sphere_file_is_said() -> None:
    shorten = sphere(SAMPLES, sample_coding="-s26 pcm,embedded-shorten-v2.00")
    assert "pcm,embedded-shorten-v2.00" in refusal(shorten)
    assert "'ulaw'" in refusal(sphere(SAMPLES, sample_coding="-s4 ulaw"))
    whole = sphere(SAMPLES)
    assert "cut off: 600 bytes of samples announced, 599 there" in refusal(whole[:-1])
    assert "cut off: a SPHERE header of 1024 bytes in a file of 1000" in refusal(whole[:1000])
    assert "without its size" in refusal(b"NIST_1A\n   ten!\n" + whole[16:])
    assert "without end_head" in refusal(whole.replace(b"end_head", b"and_head"))
    for field in ("channel_count", "sample_count", "sample_rate", "sample_n_bytes"):
        assert f"without {field}" in refusal(sphere(SAMPLES, **{field: ""}))
    assert "sample_count '-5'" in refusal(sphere(SAMPLES, sample_count="-i -5"))
    assert "samples of 1 bytes" in refusal(sphere(SAMPLES, sample_n_bytes="-i 1"))
    assert "sample_byte_format '1'" in refusal(sphere(SAMPLES, sample_byte_format="-s1 1"))
    assert "no channels" in refusal(sphere(SAMPLES, channel_count="-i 0", sample_count="-i 0"))
    assert "no samples" in refusal(sphere(SAMPLES[:0]))
    assert "0 Hz" in refusal(sphere(SAMPLES, rate=0))


def test_riff_with_other_chunks_channels_and_the_extensible_format() -> None:
    assert decode(riff(SAMPLES)).samples.tolist() == SAMPLES.tolist()
    assert decode(riff(SAMPLES, 44100)).rate == 44100
    assert decode(riff(SAMPLES, channels=3)).samples.tolist() == SAMPLES[::3].tolist()
    assert decode(riff(SAMPLES, before=b"LIST\3\0\0\0abc\0")).samples.tolist() == SAMPLES.tolist()
    form = struct.pack("<HHIIHHHHIH14s", 0xFFFE, 1, 8000, 16000, 2, 16, 22, 16, 4, 1, b"")
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", 600) + packed(SAMPLES)
    assert decode(b"RIFF" + struct.pack("<I", len(body)) + body).samples.tolist() == SAMPLES.tolist()


def test_what_is_wrong_with_a_riff_file_is_said() -> None:
    whole = riff(SAMPLES)
    assert "cut off: 600 bytes of samples announced, 599 there" in refusal(whole[:-1])
    assert "without data" in refusal(whole[:36])
    assert "ends in its format" in refusal(whole[:30])
    assert "b'AVI '" in refusal(whole.replace(b"WAVE", b"AVI "))
    assert "format 3 with 16 bits" in refusal(whole.replace(struct.pack("<HH", 1, 1), struct.pack("<HH", 3, 1), 1))
    assert "format 1 with 24 bits" in refusal(whole.replace(struct.pack("<HH", 2, 16), struct.pack("<HH", 2, 24), 1))
    assert "before their format" in refusal(whole[:12] + whole[36:])
    assert "no channels" in refusal(riff(SAMPLES, channels=0))
    assert "no samples" in refusal(riff(SAMPLES[:0]))


def test_other_files_are_refused() -> None:
    assert "empty" in refusal(b"")
    assert "neither SPHERE, RIFF nor FLAC: it begins with 4f 67 67 53" in refusal(b"OggS and so on")


def smooth(n: int) -> list[int]:
    return noise(n, seed=n, scale=300.0).to(torch.int64).cumsum(0).clamp(-20_000, 20_000).tolist()


def flac_of_everything() -> FlacWriter:
    writer = FlacWriter()
    writer.constant(-77, 16)
    writer.verbatim(noise(50, seed=2).tolist())
    writer.verbatim([sample << 3 for sample in range(-20, 20)], wasted=3)
    for order, factors in enumerate(FIXED_PREDICTORS):
        writer.predicted(smooth(64), factors, 0, fixed=True, parts=order % 3, escape=order == 2)
    for order in (1, 2, 7, 32):
        writer.predicted(smooth(128), [(-1) ** k * (9000 // (k + 1)) for k in range(order)], 13, fixed=False, parts=1)
    writer.predicted(smooth(64), [100, -50], 7, fixed=False, escape=True)
    writer.predicted(smooth(64), [100, -50], 7, fixed=False, parts=2, method=1)
    writer.predicted(smooth(64), [1], 0, fixed=True, escape=True, method=1)
    return writer


def test_flac_with_every_kind_of_frame() -> None:
    writer = flac_of_everything()
    for content in (writer.content(), writer.content(padding=False), writer.content(md5=bytes(16)), writer.content() + b"ID3"):
        recording = decode(content)
        assert recording.samples.tolist() == writer.samples
        assert recording.rate == 8000


def test_what_is_wrong_with_a_flac_file_is_said() -> None:
    writer = flac_of_everything()
    whole = writer.content()
    assert "another MD5" in refusal(writer.content(md5=b"x" * 16))
    assert "2 channels of 16 bits" in refusal(writer.content(channels=2))
    assert "1 channels of 24 bits" in refusal(writer.content(width=24))
    reserved = FlacWriter()
    reserved.predicted(smooth(64), [1], 0, fixed=True, method=2)
    assert "a FLAC residual of an unknown kind" in refusal(reserved.content())
    assert "without stream information" in refusal(b"fLaC\x84\0\0\0")
    for length in range(4, len(whole), 7):
        assert "cut off" in refusal(whole[:length])


def test_a_changed_bit_of_a_flac_frame_is_noticed_without_the_md5() -> None:
    """Encoders that write into a pipe leave the MD5 out; the frames have checksums of their own."""
    writer = flac_of_everything()
    whole = writer.content(md5=bytes(16))
    first = len(whole) - len(writer.frames)
    for place in range(first, len(whole), 5):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        assert refusal(bytes(changed)).startswith(("damaged", "cut off"))


def test_a_flac_file_with_more_samples_than_announced_is_refused_without_the_md5() -> None:
    """Whether the announced ones end with a frame or within one. None announced means that their number was not known."""
    writer = flac_of_everything()
    whole = len(writer.samples)
    for announced in (16, 17, 16 + 50, whole - 64, whole - 1):
        message = f"{announced} FLAC samples announced, more there"
        assert message in refusal(writer.content(md5=bytes(16), announced=announced))
    assert decode(writer.content(md5=bytes(16), announced=0)).samples.tolist() == writer.samples


Maker = Callable[[Tensor], bytes]
MAKERS: dict[str, Maker] = {"sphere": sphere, "riff": riff, "flac": lambda _: flac_of_everything().content()}


@pytest.mark.parametrize("kind", MAKERS)
@given(data=st.data())
def test_any_damage_is_refused_in_words_or_harmless(record: Recorder, kind: str, data: st.DataObject) -> None:
    """Bytes changed, cut out, put in or cut off, first of all in the header: a `ValueError` of ours or a recording."""
    content = bytearray(MAKERS[kind](SAMPLES[:40]))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content)) if data.draw(st.booleans()) else st.integers(0, min(160, len(content))))
        removed = data.draw(st.integers(0, 4))
        content[place : place + removed] = data.draw(st.binary(max_size=4))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    error = raised_by(lambda: decode(bytes(content)))
    record(cases=1, cases_refused=error is not None)
    if error is None:
        recording = decode(bytes(content))
        assert recording.samples.dtype == torch.int16
        assert len(recording.samples) > 0
        assert recording.rate > 0
    else:
        assert type(error) is ValueError
        assert str(error)


@given(content=st.binary(max_size=200), magic=st.sampled_from([b"NIST_1A\n   1024\n", b"RIFF\0\0\0\0WAVE", b"fLaC"]))
def test_noise_behind_a_magic_word_is_refused_in_words(content: bytes, magic: bytes) -> None:
    error = raised_by(lambda: decode(magic + content))
    assert error is None or type(error) is ValueError


def test_timits_sphere_and_riff_files_agree() -> None:
    with tarfile.open(real("timit_sample/timit_nltk_sample.tar.xz")) as archive:
        contents = {
            member.name.rpartition(".")[2]: archive.extractfile(member).read()  # type: ignore[union-attr]
            for member in archive
            if member.name.endswith(("dr1-fvmh0/si836.sph", "dr1-fvmh0/si836.wav"))
        }
    original, copy = decode(contents["sph"]), decode(contents["wav"])
    assert original.rate == copy.rate == 16000
    assert torch.equal(original.samples, copy.samples)
    assert (len(original.samples), int(original.samples.min()), int(original.samples.max())) == (68_813, -6058, 8163)


def test_real_flac_files_have_the_samples_their_encoder_saw(full: bool, record: Recorder) -> None:
    """The MD5 is taken here once more, of what `decode` hands out."""
    with tarfile.open(real("speech8k/speech8k_small.tar")) as archive:
        members = [member for member in archive if member.name.endswith(".flac")]
        assert len(members) == 900
        for member in members if full else members[:: len(members) // 3]:
            content = archive.extractfile(member).read()  # type: ignore[union-attr]
            recording = decode(content)
            digest = hashlib.md5(io.BytesIO(packed(recording.samples)).getvalue()).digest()
            assert digest == content[26:42]
            assert recording.rate == 8000
            record(cases=1)
