"""The mask-filling program: its output, and the sentences and models that it rejects."""

import re

import pytest

from keras_bert.programs import fill_mask
from keras_bert.programs.program import call


@pytest.fixture
def fill(capfd):
    """Returns a function: (texts, **flags) -> exit code, printed lines, standard error."""

    def run(texts, **flags):
        given = [f"--{name}={value}" for name, value in flags.items()]
        code = call(fill_mask.PROGRAM, ["run_fill_mask.py", *given, *texts])
        out, err = capfd.readouterr()
        return code, out.splitlines(), err

    return run


def test_prints_each_sentence_and_one_line_per_mask(pretrained, fill):
    texts = ["it is [MASK] .", "[MASK] is a [MASK]"]
    code, lines, _ = fill(texts, model_dir=pretrained, top_k=3)
    assert code == 0
    assert [lines[0], lines[2]] == texts
    assert len(lines) == 5
    for line in (lines[1], *lines[3:]):
        assert re.fullmatch(r"    \S+ \d+\.\d%  \S+ \d+\.\d%  \S+ \d+\.\d%", line)
        shares = [float(share) for share in re.findall(r"([\d.]+)%", line)]
        assert shares == sorted(shares, reverse=True)


def test_sentence_without_mask_within_max_length_is_rejected(pretrained, fill):
    text = "very " * 8 + "[MASK]"
    code, lines, error = fill(["a [MASK]", text], model_dir=pretrained, max_seq_length=8)
    assert (code, lines) == (1, [])
    assert f"no [MASK] within the first 8 tokens of the text {text!r}" in error


def test_sentence_that_is_not_utf8_is_rejected(pretrained, fill):
    code, lines, error = fill(["a [MASK]", "a [MASK] \udcff"], model_dir=pretrained)
    assert (code, lines) == (1, [])
    assert error.endswith(
        r"the sentence 'a [MASK] \udcff' is not UTF-8; expected text in UTF-8" + "\n"
    )


def test_encoder_without_masked_lm_head_is_rejected(make_checkpoint, fill, tmp_path):
    path = make_checkpoint(tmp_path / "bert", ["a", "b"])
    code, lines, error = fill(["[MASK]"], model_dir=path)
    assert (code, lines) == (1, [])
    assert f"--model_dir={path} has no masked-LM head; expected a pre-trained model" in error
