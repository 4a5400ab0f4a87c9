"""Names as long as they may be, and such as are not what they seem to be, on every view."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import DESK, PHONE, OpenPage
from tests.browser.stage import TOPIC, Stage
from tests.browser.test_for_everyone import addresses

LONG = 255
NARROW = (800, 900)
NAMES = (
    *("name", "topic", "group", "clientId", "address", "brokerName", "cluster", "nodeId", "id", "tags"),
    *("uniqueKey", "leaderId", "remotingAddress", "who", "key", "actor", "target", "subject"),
    *("originalTopic", "consumerGroup", "expression", "version", "language"),
    *("clientHost", "bornHost", "remote"),
)
LISTS = ("keys", "brokers", "consumerGroups", "inSync")
RENAME = """
(() => {
  const names = new Set(NAMES), lists = new Set(LISTS), rename = RENAME;
  const walk = (value, key) => {
    if (typeof value === "string") return names.has(key) ? rename(value) : value;
    if (Array.isArray(value)) return value.map((one) => walk(one, lists.has(key) ? "name" : ""));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, walk(one, name)]));
  };
  const parse = JSON.parse, json = Response.prototype.json;
  JSON.parse = (text) => walk(parse(text), "");
  Response.prototype.json = async function () { return walk(await json.call(this), ""); };
})()
"""
"""Whatever the page reads, its names are others."""
STRETCHED = f'(name) => `${{name}}_${{"long-name.".repeat(26)}}`.slice(0, {LONG - 4}) + name.slice(-4)'
ONE_STRETCHED = f'(name) => name === "{TOPIC}" ? ({STRETCHED})(name) : name'
HIDDEN = "\u202e\u2066\u200f\u061c\u200b\x07"
DISGUISED = f"(name) => `${{name}}{HIDDEN}txt.exe`"
BROKEN_WORDS = """() => {
  const found = [];
  for (const cell of document.querySelectorAll("th, td:not(.text)")) {
    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let text = walker.nextNode(); text; text = walker.nextNode()) {
      if (text.parentElement.closest(".long, ul, .visually-hidden, caption")) continue;
      for (const word of text.data.matchAll(/[\\p{L}\\p{N}_]+/gu)) {
        const range = document.createRange();
        range.setStart(text, word.index);
        range.setEnd(text, word.index + word[0].length);
        const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
        if (lines.size > 1) found.push(word[0]);
      }
    }
  }
  return [...new Set(found)];
}"""
"""Words of cells that begin on one line and end on the next."""
CUT_NAMES = """() => [...document.querySelectorAll(".long")].filter((one) => one.checkVisibility())
.map((one) => {
  const { width, height } = one.getBoundingClientRect();
  const canFocus = one.tabIndex === 0 || one.closest("a, button, summary") !== null;
  return { text: one.textContent, title: one.title, width, height, canFocus };
})"""
ALL_TEXT = """() => [document.body.textContent, [...document.querySelectorAll("[title], [aria-label]")].map(
  (one) => `${one.title}${one.getAttribute("aria-label")}`).join(), document.title]"""
OVER_THE_EDGE = """() => [...document.querySelectorAll("main *, dialog *")].filter((one) => {
  const box = one.getBoundingClientRect();
  const scrolls = one.closest(".scroll-x, .scroll, .canvas, .visually-hidden") !== null;
  return box.width > 0 && box.right > innerWidth + 1 && !scrolls;
}).map((one) => one.outerHTML.slice(0, 120))"""


def renamed(page: Page, rename: str) -> None:
    """From the next load on."""
    script = RENAME.replace("RENAME", rename)
    script = script.replace("NAMES", str(list(NAMES))).replace("LISTS", str(list(LISTS)))
    page.add_init_script(script)


def visit(page: Page, stage: Stage, address: str) -> None:
    page.goto(f"{stage.cluster.admin}/{address}")
    page.reload()
    expect(page.locator("h1")).to_be_visible()
    expect(page.get_by_text("Loading…").locator("visible=true")).to_have_count(0)
    page.wait_for_timeout(300)


@pytest.mark.parametrize(
    ("size", "rename"),
    [
        pytest.param(DESK, STRETCHED, id="desk, all"),
        pytest.param(NARROW, ONE_STRETCHED, id="narrow, one", marks=pytest.mark.long),
        pytest.param(PHONE, STRETCHED, id="phone, all", marks=pytest.mark.long),
        pytest.param(DESK, ONE_STRETCHED, id="desk, one", marks=pytest.mark.long),
        pytest.param(NARROW, STRETCHED, id="narrow, all", marks=pytest.mark.long),
        pytest.param(PHONE, ONE_STRETCHED, id="phone, one", marks=pytest.mark.long),
    ],
)
def test_names_of_255_characters_take_no_room_from_others(
    open_page: OpenPage, stage: Stage, size: tuple[int, int], rename: str
) -> None:
    page = open_page("#/cluster", size)
    every = addresses(stage, page)
    renamed(page, rename)
    found: dict[str, Any] = {}
    for address in (*every, f"#/topics/{'t' * 127}", f"#/groups/{'g' * LONG}"):
        visit(page, stage, address)
        found[address] = squeezed(page, size)
    visit(page, stage, f"#/topics/{TOPIC}")
    page.get_by_role("button", name="Delete…").click()
    expect(page.get_by_text("What will happen")).to_be_visible()
    found["a preview"] = squeezed(page, size)
    assert {address: faults for address, faults in found.items() if faults} == {}
    if rename == STRETCHED:
        visit(page, stage, "#/topics")
        assert len(page.evaluate(CUT_NAMES)) > 20


def squeezed(page: Page, size: tuple[int, int]) -> list[object]:
    """What long names have done to the view, or what is not right about how they are cut."""
    faults: list[object] = [
        name
        for name in page.evaluate(CUT_NAMES)
        if name["text"] != name["title"] or not name["canFocus"] or name["width"] > 450 or name["height"] > 40
    ]
    if size != PHONE:  # there a value stands beside its heading, and no column beside another
        faults += page.evaluate(BROKEN_WORDS)
    faults += page.evaluate(OVER_THE_EDGE)
    width = page.evaluate("document.documentElement.scrollWidth")
    return faults[:3] + ([width] if width > size[0] else [])


def test_a_name_that_is_cut_is_whole_to_a_reader_of_the_screen_and_with_the_focus(
    open_page: OpenPage, stage: Stage
) -> None:
    page = open_page("#/cluster")
    renamed(page, STRETCHED)
    visit(page, stage, "#/topics")
    name = page.evaluate(f"({STRETCHED})('{TOPIC}')")
    link = page.get_by_role("link", name=name, exact=True)
    expect(link).to_have_count(1)
    assert link.locator(".long").get_attribute("title") == name
    cut = link.locator(".long")
    before = cut.bounding_box()
    link.focus()
    shown = cut.bounding_box()
    assert before is not None
    assert shown is not None
    assert shown["height"] > 3 * before["height"], "the whole name is shown"
    link.select_text()
    assert page.evaluate("String(getSelection())") == name
    broker = page.locator("td .long").and_(page.locator("[tabindex]")).first
    broker.focus()
    box = broker.bounding_box()
    assert box is not None
    assert box["height"] > 3 * before["height"]


def marked(text: str) -> str:
    """The marks have single angle quotation marks about them."""
    return text.replace("<", "\u2039").replace(">", "\u203a")


def test_no_character_from_outside_moves_others_or_hides(open_page: OpenPage, stage: Stage) -> None:
    page = open_page("#/cluster")
    every = addresses(stage, page)
    renamed(page, DISGUISED)
    found: dict[str, Any] = {}
    marks = 0
    for address in every:
        visit(page, stage, address)
        text, spoken, title = page.evaluate(ALL_TEXT)
        marks += text.count(marked("<U+202E><U+2066><U+200F><U+061C><U+200B><U+0007>txt.exe"))
        left = [char for char in HIDDEN if char in text + spoken + title]
        if left:
            found[address] = left
    assert found == {}
    assert marks > len(every)


MARKS = [
    ("plain Grüße 名前 ☕️", "plain Grüße 名前 ☕️", "plain Grüße 名前 ☕️"),
    ("a\u202eb", "a<U+202E>b", "a<U+202E>b"),
    ("\u00ad\ufeff\U000e0020", "<U+00AD><U+FEFF><U+E0020>", "<U+00AD><U+FEFF><U+E0020>"),
    ("\u034f\u3164", "<U+034F><U+3164>", "<U+034F><U+3164>"),
    ("1\r\n2\n3\t4", "1↵2↵3<U+0009>4", "1\r\n2\n3\t4"),
    ("1\r2", "1↵2", "1<U+000D>2"),
    ("👨\u200d👩\u200d👧 a\u200db", "👨\u200d👩\u200d👧 a<U+200D>b", "👨\u200d👩\u200d👧 a<U+200D>b"),
    ("\\ud800", "<U+D800>", "<U+D800>"),
]


def test_marks(open_page: OpenPage) -> None:
    page = open_page("#/cluster")
    script = """async (texts) => {
      const { visible, visibleLines } = await import("/static/markup.js");
      const halves = texts.map((text) => text.replace("\\\\ud800", "\\ud800"));
      return halves.map((text) => [visible(text), visibleLines(text)]);
    }"""
    shown = page.evaluate(script, [text for text, *_ in MARKS])
    assert [tuple(each) for each in shown] == [(marked(line), marked(lines)) for _, line, lines in MARKS]


def test_what_is_written_from_right_to_left_keeps_its_place(open_page: OpenPage) -> None:
    page = open_page("#/cluster")
    places = page.evaluate(
        """async (text) => {
          const { html } = await import("/static/markup.js");
          const { render } = await import("/static/vendor/preact/preact.mjs");
          const line = document.body.appendChild(document.createElement("div"));
          render(html`<p>${text}</p>`, line);
          const left = (word) => {
            for (const walker = document.createTreeWalker(line, NodeFilter.SHOW_TEXT); walker.nextNode();) {
              const at = walker.currentNode.data.indexOf(word);
              if (at < 0) continue;
              const range = document.createRange();
              range.setStart(walker.currentNode, at);
              range.setEnd(walker.currentNode, at + word.length);
              return range.getBoundingClientRect().left;
            }
          };
          return [line.textContent, ["שלום", "7", "עולם", "9"].map(left)];
        }""",
        "שלום/7 עולם 9",
    )
    assert places[0] == "שלום/7 עולם 9"
    assert places[1] == sorted(places[1]), "in the order in which they stand in the text"
