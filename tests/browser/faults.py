"""Looks at a page as those need it who do not see it well; each answers a list of faults in words."""

from __future__ import annotations

from collections.abc import Sequence

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

GRAVE = ("serious", "critical")


def axe_faults(page: Page, rules: Sequence[str] = ()) -> list[str]:
    """What axe-core finds grave in the page as it is now, by all of its rules or by some."""
    options = {"resultTypes": ["violations"]} | ({"runOnly": list(rules)} if rules else {})
    violations = Axe().run(page, options=options).response["violations"]
    return [
        f"{violation['id']}: {node['html'][:160]} ({node['failureSummary']})"
        for violation in violations
        if violation["impact"] in GRAVE
        for node in violation["nodes"]
    ]


FAULTS = r"""
() => {
  const faults = [];
  const shown = (element) => element.checkVisibility();
  const named = (element) => (element.getAttribute("aria-label") ?? element.textContent).trim() !== "";
  const tell = (element, fault) => faults.push(`${fault}: ${element.outerHTML.slice(0, 120)}`);
  for (const control of document.querySelectorAll("input, select, textarea")) {
    const isLabelled = control.labels.length > 0 || control.hasAttribute("aria-label");
    if (shown(control) && !isLabelled) tell(control, "no label");
  }
  for (const control of document.querySelectorAll("a[href], button, summary")) {
    if (!named(control)) tell(control, "no name");
  }
  for (const image of document.querySelectorAll("img, [role=img]")) {
    if (!image.hasAttribute("alt") && !image.hasAttribute("aria-label")) tell(image, "no text instead");
  }
  for (const head of document.querySelectorAll("th")) if (!head.scope) tell(head, "no scope");
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  const twice = ids.filter((id, at) => ids.indexOf(id) !== at);
  for (const id of twice) faults.push(`id ${id} twice`);
  if (document.querySelectorAll("h1").length !== 1) faults.push("not one h1");
  const heads = [...document.querySelectorAll("h1, h2, h3, h4")].filter(shown);
  heads.map((head) => Number(head.tagName[1])).forEach((level, at, levels) => {
    if (at > 0 && level > levels[at - 1] + 1) faults.push(`h${levels[at - 1]} then h${level}`);
  });
  if (!document.documentElement.lang) faults.push("no language");
  return faults;
}
"""

LOW_CONTRAST = r"""
() => {
  const RATIO = 4.5;
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number);
    return { r, g, b, a };
  };
  const light = ({ r, g, b }) => {
    const [x, y, z] = [r, g, b].map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.a === 1) return colour;
    }
    return { r: 255, g: 255, b: 255, a: 1 };
  };
  const faults = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const isEmpty = walker.currentNode.textContent.trim() === "";
    if (isEmpty || !element.checkVisibility() || element.closest(":disabled, option")) continue;
    const own = light(parse(getComputedStyle(element).color));
    const [a, b] = [own, light(ground(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < RATIO) faults.add(`contrast ${ratio.toFixed(1)}: ${element.tagName} ${element.className}`);
  }
  return [...faults];
}
"""
