"""The page in a real browser: it says nothing wrong, asks for nothing, and shows what was stored."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pagesim as ps
from pagesim.api import run, trace_of
from pagesim.results.report import write_report
from pagesim.setup.scenario import Scenario
from tests.results.report.reading import ADD_UP, stamp, stored

HOSTILE = "</script><script>window.ran=1</script><img src=x onerror='window.ran=1'>"
LINK = "<a href='javascript:window.ran=1'>x</a><b>y</b>%{x}"


@pytest.fixture
def opened(standing: Any) -> Any:
    """Return a browser in which that page is as if it had just been opened."""
    standing.call("Page.bringToFront")
    standing.complaints.clear()
    standing.run("document.activeElement.blur(), pagesimReport.map.leave(), pagesimReport.map.seek(60)")
    return standing


def test_it_loads_without_an_error_and_without_a_request(browser, page):
    browser.open(page)
    browser.wait("document.querySelectorAll('.chart .main-svg').length > 10")
    browser.goes_dark()
    assert browser.run("document.getElementById('failure').hidden")


@pytest.mark.slow
def test_the_policy_stops_a_fetch(opened):
    answer = opened.run("fetch('http://127.0.0.1:9/').then(() => 'fetched', () => 'stopped')")
    assert answer == "stopped"
    assert any("Content Security Policy" in complaint for complaint in opened.complaints)


@pytest.mark.slow
def test_it_follows_what_the_user_prefers(browser, page):
    browser.size(1400, 1000, dark=True)
    browser.open(page, drawn=False)
    assert browser.run("document.documentElement.dataset.theme") == "dark"
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 27)"


def test_the_slider_and_the_play_button_move_the_map(opened):
    before = stamp(opened)
    opened.choose("time", "90")
    assert stamp(opened) != before
    assert opened.run("pagesimReport.map.slot") == 90
    opened.run("document.getElementById('play').click()")
    opened.wait("pagesimReport.map.slot > 93")
    assert opened.run("document.getElementById('play').getAttribute('aria-pressed')") == "true"
    opened.wait("pagesimReport.map.slot === 119")
    opened.wait("document.getElementById('play').getAttribute('aria-pressed') === 'false'")
    assert opened.complaints == []


def test_keys_move_the_time_and_choose_a_cell(opened):
    start = opened.run("pagesimReport.map.slot")
    opened.run("document.getElementById('time').focus()")
    opened.press("ArrowRight")
    assert opened.run("pagesimReport.map.slot") == start + 1
    opened.run("document.querySelector('.pane canvas').focus()")
    for key, slot in (("ArrowRight", start + 2), ("ArrowDown", start + 12), ("ArrowLeft", start + 11)):
        opened.press(key)
        assert opened.run("pagesimReport.map.slot") == slot
    opened.press("ArrowRight", shift=True)
    opened.press("ArrowRight", shift=True)
    assert opened.run("document.getElementById('readout').textContent").startswith("block 1")
    opened.press(" ")
    assert opened.run("pagesimReport.map.playing !== null")
    opened.press(" ")
    assert opened.run("pagesimReport.map.playing === null")


def test_everything_to_operate_is_reached_by_tab_and_shows_it(opened):
    reached = []
    for _ in range(60):
        opened.press("Tab")
        reached.append(
            opened.run(
                "[document.activeElement.id || document.activeElement.tagName,"
                " getComputedStyle(document.activeElement).outlineStyle]"
            )
        )
    names = [name for name, _ in reached]
    for control in ("theme", "play", "time", "left", "right", "size", "CANVAS", "fall-name", "fall-from"):
        assert control in names
    assert {outline for name, outline in reached if name != "BODY"} == {"solid"}


def test_pointing_at_a_cell_names_a_request_that_runs_at_that_time(opened, page):
    """Checked against the stored table, for the cells of a whole row of the map."""
    named = 0
    for side, folder in enumerate(("a", "b")):
        requests = ps.load(page.parent / folder).requests.set_index("request_id")
        left, top, width, height = opened.run(
            f"(() => {{ const c = pagesimReport.map.panes[{side}].canvas;"
            " c.scrollIntoView({block: 'center'});"
            " const r = c.getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; })()"
        )
        clock = opened.run(f"pagesimReport.map.panes[{side}].frames.clock")
        for x in np.linspace(left + 4, left + width - 4, 25):
            opened.point(x, top + height / 3)
            told = opened.run("document.getElementById('tip').innerText")
            assert not opened.run("document.getElementById('tip').hidden")
            assert told.replace("\n", "; ") + "." == opened.run(
                "document.getElementById('readout').innerText"
            )
            found = re.match(r"block [\d,]+: request (\d+)", told)
            if not found:
                assert "free" in told
                continue
            named += 1
            request = requests.loc[int(found[1])]
            assert request["first_scheduled_s"] <= clock + 1e-9
            assert clock < request["finish_s"]
            final = request["prompt_tokens"] + request["output_tokens"]
            holds = re.search(r"holds ([\d,]+) of ([\d,]+) tokens", told)
            assert holds is not None
            assert int(holds[2].replace(",", "")) == final
            assert request["prompt_tokens"] <= int(holds[1].replace(",", "")) < final
            assert re.search(r"reference count \d", told)
    assert named > 20


def test_the_cells_add_up_to_the_ledger_at_every_instant(opened):
    """The page works the states of a cell out by itself; the ledger beside it comes from Python."""
    assert opened.run(ADD_UP) == [246, []]


def test_a_click_on_a_chart_moves_the_map_to_that_time(opened):
    chart = "document.querySelector('#ledgers .chart')"
    opened.run(f"void {chart}.emit('plotly_click', {{points: [{{x: pagesimReport.data.instants[33]}}]}})")
    assert opened.run("pagesimReport.map.slot") == 33
    marked = opened.run(f"{chart}.layout.shapes[0].x0")
    assert marked == opened.run("pagesimReport.data.instants[33]")


@pytest.mark.slow
def test_on_paper_it_is_light(opened):
    opened.run("document.getElementById('theme').click()")
    assert opened.run("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 27)"
    opened.run("dispatchEvent(new Event('beforeprint'))")
    assert opened.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    opened.run("dispatchEvent(new Event('afterprint'))")
    assert opened.run("document.documentElement.dataset.theme") == "dark"
    opened.run("document.getElementById('theme').click()")


def test_it_winds_back_to_the_same_picture(opened):
    opened.run("pagesimReport.map.seek(100)")
    there = stamp(opened)
    opened.run("pagesimReport.map.seek(7)")
    assert stamp(opened) != there
    opened.run("pagesimReport.map.seek(100)")
    assert stamp(opened) == there


def test_the_waterfall_is_filtered_and_zoomed(opened, page):
    opened.run("document.getElementById('fall-all').click()")
    assert opened.run("document.getElementById('fall-left-out').textContent").startswith("60 requests")
    opened.choose("fall-kind", "preempted")
    requests = ps.load(page.parent / "b").requests
    preempted = int(((requests["recomputes"] > 0) | (requests["swaps"] > 0)).sum())
    assert preempted > 2
    assert opened.run("document.getElementById('fall-left-out').textContent").startswith(
        f"{preempted} requests"
    )
    opened.choose("fall-name", "no such request")
    assert opened.run("document.getElementById('fall-left-out').textContent").startswith("0 requests")
    assert opened.complaints == []


LINES = "new Set(document.getElementById('fall').data.flatMap(({ y }) => y)).size"
RANGE = "['fall-from', 'fall-to'].map((id) => Number(document.getElementById(id).value))"


def test_the_requests_of_a_busy_server_open_on_lines_that_can_be_read(browser, tmp_path):
    """Hundreds run at a time: some are drawn, evenly spaced, as long as a quarter of the chart."""
    busy = {"rate": 40.0, "num_requests": 2000, "num_blocks": 20_000, "max_model_len": 2048}
    folder = stored(tmp_path / "busy", cost="affine:0.03,0,0", policy="vllm-sosp", **busy)
    requests = ps.load(folder).requests
    write_report([folder], tmp_path / "report.html", instants=20)
    browser.open(tmp_path / "report.html")
    start, end = browser.run(RANGE)
    there = requests[(requests["arrival_s"] <= end) & (requests["finish_s"] >= start)]
    assert len(there) > 200
    assert browser.run(LINES) == 40
    told = browser.run("document.getElementById('fall-left-out').innerText")
    assert told.startswith(f"{len(there):,} requests are there between {start:.2f} s")
    assert "40 of them are shown" in told
    took = (requests["finish_s"] - requests["arrival_s"]).median()
    assert end - start == pytest.approx(4 * took, rel=0.01)
    browser.choose("fall-lines", "250")
    assert browser.run(LINES) == min(250, len(there))
    browser.run("document.getElementById('fall-out').click()")
    wider = browser.run(RANGE)
    assert wider[0] < start
    assert wider[1] > end
    browser.run("document.getElementById('fall-all').click()")
    assert browser.run("document.getElementById('fall-left-out').innerText").startswith("2,000 requests")
    assert browser.complaints == []


def test_hostile_names_do_not_run(browser, tmp_path):
    table = pd.DataFrame(
        {"request_id": [HOSTILE, LINK, "c"], "prompt_tokens": [900, 300, 20], "output_tokens": 50}
    )
    table.assign(arrival_s=0.0).to_csv(tmp_path / "<img src=x onerror=window.ran=1>.csv", index=False)
    options = {
        "trace": str(tmp_path / "<img src=x onerror=window.ran=1>.csv"),
        "rate": None,
        "num_requests": 3,
    }
    folders = [stored(tmp_path / name, **options) for name in ("<img src=x onerror=window.ran=1>", "b")]
    write_report(folders, tmp_path / "report.html", instants=20)
    browser.open(tmp_path / "report.html")
    browser.run("pagesimReport.map.seek(3)")
    for name in (HOSTILE, LINK):
        x, y = browser.run(f"""(() => {{
            const pane = pagesimReport.map.panes[0], canvas = pane.canvas, frames = pane.frames;
            canvas.scrollIntoView({{block: 'center'}});
            const block = frames.device.owner.findIndex(o => frames.requestOf(o) === {json.dumps(name)});
            const [x, y] = pane.box(pane.grid, block), {{ left, top }} = canvas.getBoundingClientRect();
            return [left + x + 3, top + y + 3];
        }})()""")
        browser.point(x, y)
        assert name in browser.run("document.getElementById('tip').innerText"), "it is shown as it is"
    box = browser.run(
        "(() => { const f = document.getElementById('fall'); f.scrollIntoView({block: 'center'});"
        " const r = f.getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; })()"
    )
    for y in range(30, int(box[3]) - 50, 40):
        browser.point(box[0] + box[2] / 2, box[1] + y)
    assert browser.run("window.ran === undefined")
    assert browser.run("document.querySelectorAll('img, main a, svg a').length") == 0
    assert browser.complaints == []
    assert browser.requests == []


@pytest.mark.slow
def test_every_kind_of_result_has_its_place(browser, tmp_path):
    kinds: dict[str, dict[str, Any]] = {
        "no request is served": {"max_model_len": 4},
        "one token": {"num_requests": 1, "trace": "fixed:100,1"},
        "a static batch": {"policy": "static", "max_batch": 3},
        "prefixes": {"policy": "vllm-v1", "enable_prefix_caching": True, "shared_prefix": "200"},
        "priced preemptions": {"policy": "vllm-sosp", "preemption": "auto", "num_blocks": 120},
        "cut off": {"policy": "vllm-sosp", "until": 4.0},
    }
    folders = [stored(tmp_path / name, **options) for name, options in kinds.items()]
    write_report(folders, tmp_path / "report.html", instants=30)
    browser.open(tmp_path / "report.html")
    text = browser.run("document.body.innerText")
    assert "vllm-v1" in text
    assert "swapping was priced at" in text
    for left in range(len(kinds)):
        browser.choose("left", str(left))
        browser.choose("fall-system", str(left))
        text += browser.run("document.body.innerText")
    assert not re.findall(r"NaN|undefined|null|Infinity", text)
    assert browser.complaints == []


@pytest.mark.slow
def test_without_a_replay_the_page_says_so(browser, tmp_path):
    ps.simulate("fixed:50,20", num_blocks=100).save(tmp_path / "out")
    write_report([tmp_path / "out"], tmp_path / "report.html")
    browser.open(tmp_path / "report.html")
    assert "vllm-v1 has no map: its trace was given as an object" in browser.run("document.body.innerText")
    assert browser.run("document.getElementById('map-body').hidden")
    assert browser.complaints == []


@pytest.mark.slow
def test_it_is_interactive_within_three_seconds_at_16000_blocks_and_100000_iterations(
    browser, tmp_path, slowdown: Callable[[], float], capsys
):
    chosen = Scenario(
        trace="sharegpt", rate=6.0, num_requests=14_000, num_blocks=16_000, cost="affine:0.02,0,0"
    )
    result = run(chosen, trace_of(chosen))
    assert result.summary["iterations"] > 100_000
    result.save(tmp_path / "out")
    write_report([tmp_path / "out"], tmp_path / "report.html")
    took = []
    for _ in range(3):
        browser.open(tmp_path / "report.html")
        assert browser.complaints == []
        took.append(browser.run("[pagesimReport.interactive, pagesimReport.drawn]"))
    interactive, drawn = (min(times) / 1e3 for times in zip(*took, strict=True))
    frame = browser.run("""(async () => {
        const start = performance.now();
        for (let slot = 0; slot < 400; slot += 1) pagesimReport.map.seek(slot);
        return (performance.now() - start) / 400;
    })()""")
    size = (tmp_path / "report.html").stat().st_size / 1e6
    with capsys.disabled():
        print(
            f"\n{result.summary['iterations']:,} iterations, {size:.1f} MB:",
            f"interactive after {interactive:.2f} s,",
        )
        print(f"all charts after {drawn:.2f} s, {frame:.1f} ms a picture")
    assert interactive < 3.0 * slowdown()
    assert frame < 40.0 * slowdown()
