"""Samples, beams and a shared prefix are given to the requests of any trace that does not say itself."""

import numpy as np
import pytest

from pagesim.errors import PagesimError
from pagesim.workloads import decode_as, load, make_trace, save, share_prefix
from pagesim.workloads.trace import Trace


def requests(size: int, **columns) -> Trace:
    """Requests whose prompts are 1, 2, 3, ... tokens long."""
    return Trace(np.arange(size), np.arange(1, size + 1), np.full(size, 7), **columns)


def test_a_prefix_without_a_share_stands_in_front_of_every_prompt():
    trace = share_prefix(requests(3), "341")
    assert trace.prompt_tokens.tolist() == [342, 343, 344]
    assert trace.prefix_tokens is not None
    assert trace.prefix_tokens.tolist() == [341, 341, 341]
    assert trace.notes == ("a shared prefix of 341 tokens in front of 3 of 3 prompts",)


def test_a_share_of_the_requests_has_it_and_the_others_are_as_before():
    plain = requests(10_000)
    trace = share_prefix(plain, "80:0.3", seed=5)
    assert trace.prefix_tokens is not None
    assert set(trace.prefix_tokens.tolist()) == {0, 80}
    assert (trace.prompt_tokens - trace.prefix_tokens).tolist() == plain.prompt_tokens.tolist()
    having = int((trace.prefix_tokens > 0).sum())
    assert having == pytest.approx(3000, rel=0.05)
    assert trace.notes[-1] == f"a shared prefix of 80 tokens in front of {having} of 10000 prompts"


def test_a_share_of_nothing_is_no_prefix_and_says_so():
    trace = share_prefix(requests(3), "80:0")
    assert trace.prefix_tokens is None
    assert trace.notes == ("a shared prefix of 80 tokens in front of 0 of 3 prompts",)


def test_who_has_the_prefix_depends_on_the_seed_alone():
    first, again, other = (share_prefix(requests(50), "9:0.5", seed=s).prefix_tokens for s in (1, 1, 2))
    assert first is not None
    assert again is not None
    assert other is not None
    assert first.tolist() == again.tolist() != other.tolist()


def test_all_rounds_of_a_conversation_begin_alike():
    sessions = np.array([f"talk {i % 40}" for i in range(200)])
    trace = share_prefix(requests(200, session_id=sessions), "9:0.5")
    having = {(s, p) for s, p in zip(sessions.tolist(), trace.prefix_tokens.tolist(), strict=True)}
    assert len(having) == 40
    assert {p for _, p in having} == {0, 9}


def test_requests_and_arrivals_are_those_without_a_prefix(tmp_path):
    flags = {"arrivals": "sosp", "rate": 2.0, "duration": 60.0, "seed": 3}
    plain, shared = make_trace("sharegpt", **flags), make_trace("sharegpt", **flags, shared_prefix="341:0.5")
    assert shared.arrival_s.tolist() == plain.arrival_s.tolist()
    assert shared.output_tokens.tolist() == plain.output_tokens.tolist()
    assert (shared.prompt_tokens - shared.prefix_tokens).tolist() == plain.prompt_tokens.tolist()
    save(shared, tmp_path / "t.csv")
    assert load(tmp_path / "t.csv").prefix_tokens.tolist() == shared.prefix_tokens.tolist()


@pytest.mark.parametrize(
    "text", ["", "0", "-5", "2.5", "x", "1e9", ":0.5", "5:", "5:x", "5:1.5", "5:-0.1", "5:nan", "5:0.5:1"]
)
def test_a_text_that_is_no_prefix_is_refused(text):
    with pytest.raises(PagesimError) as caught:
        make_trace("fixed:5,5", shared_prefix=text)
    assert str(caught.value).startswith(f"shared_prefix is {text!r}: must be TOKENS or TOKENS:SHARE, such as")


@pytest.mark.parametrize("column", [{"hash_ids": [(1,), (1,)]}, {"prefix_tokens": np.array([1, 0])}])
def test_a_trace_that_says_itself_what_is_shared_takes_no_prefix(column):
    with pytest.raises(PagesimError) as caught:
        share_prefix(requests(2, **column), "341")
    assert str(caught.value) == (
        "shared_prefix is '341', but the trace says itself what its prompts share "
        f"({next(iter(column))}); leave it out"
    )


def test_a_prefix_that_makes_a_prompt_too_long_is_refused():
    with pytest.raises(
        PagesimError, match="the longest prompt would have 10000002 tokens, and at most 10000"
    ):
        share_prefix(requests(2), "10000000")


def test_every_request_gets_as_many_samples_and_beams():
    trace = decode_as(requests(3, n=np.array([1, 2, 3])), n=4, beam_width=6)
    assert trace.n.tolist() == [4, 4, 4]
    assert trace.beam_width.tolist() == [6, 6, 6]
    assert decode_as(requests(2, n=np.array([1, 2]))).n.tolist() == [1, 2]


MIXED = {"n": np.array([1, 2]), "sample_tokens": [(7,), (7, 3)], "request_id": np.array(["a", "b"])}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"n": 2},
            "n is 2, but in the trace the samples of a request have lengths of their own, as those of",
        ),
        ({"beam_width": 2}, "beam_width is 2, but in the trace samples differ in length, and beams all end"),
        ({"n": 0}, "n is 0; it must be a whole number from 1 to 1024"),
        ({"beam_width": 1025}, "beam_width is 1025; it must be a whole number from 1 to 1024"),
    ],
)
def test_a_trace_whose_samples_differ_keeps_them(options, said):
    with pytest.raises(PagesimError) as caught:
        decode_as(requests(2, **MIXED), **options)
    assert str(caught.value).startswith(said)


def test_one_beam_is_no_beam_search():
    assert decode_as(requests(2, **MIXED), beam_width=1).sample_tokens == [(7,), (7, 3)]
