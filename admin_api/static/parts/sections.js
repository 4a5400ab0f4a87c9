// Pages made of several answers: each is read by itself, so that one that fails leaves the others.

import { ask } from "/static/api.js";
import { make } from "/static/dom.js";
import { sayError } from "/static/parts/notice.js";

export const section = (title, ...children) => make("section", "panel", make("h2", "", title), ...children);

/**
 * parts: [{ path, show(answer), miss(), isOptional }]; what failed and what is partial is told in one notice.
 * Gives whether the thing that all of them are about does not exist: every part that has to be there says so.
 */
export async function readParts(parts, notice, signal) {
  const outcomes = await Promise.all(parts.map(async (part) => {
    try {
      const answer = await ask(part.path, { signal });
      part.show(answer);
      return { isPartial: answer.isPartial === true, problems: answer.problems ?? [] };
    } catch (error) {
      if (signal?.aborted) return { isPartial: false, problems: [] };
      part.miss?.();
      return { isMissing: true, isGone: error.status === 404 || part.isOptional === true, isPartial: part.isOptional !== true, problems: part.isOptional ? [] : [sayError(error)] };
    }
  }));
  if (signal?.aborted) return false;
  const problems = new Map(outcomes.flatMap((one) => one.problems).map((problem) => [JSON.stringify(problem), problem]));
  if (outcomes.every((one) => one.isMissing)) notice.ofNothing([...problems.values()]);
  else notice.ofAnswer({ isPartial: outcomes.some((one) => one.isPartial), problems: [...problems.values()] });
  return parts.every((part, number) => part.isOptional === true || outcomes[number].isGone === true);
}
