"use strict";

// Exchange the token after # for a cookie, then start textual.js, the terminal of textual-serve.
// What follows # is in no request, so in no log; it leaves the address and the history here.

const show = (text) => { document.getElementById("message").textContent = text; };

async function begin() {
  const token = location.hash.slice(1);
  if (token) {
    history.replaceState(null, "", location.pathname);
    await fetch("/login", { method: "POST", body: token });
  }
  const answer = await fetch("/session");
  if (!answer.ok) return show(await answer.text());
  document.title = `${(await answer.json()).title} - Fairbed`;
  const terminal = document.getElementById("terminal");
  terminal.dataset.sessionWebsocketUrl = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws`;
  // The width of a cell is measured once, so the font must be there before.
  await Promise.all(["", "bold ", "italic "].map((style) => document.fonts.load(`${style}15px "Roboto Mono"`)));
  const script = document.createElement("script");
  script.src = "/static/js/textual.js";
  script.onload = () => window.onload(); // it waits for an event that has passed
  document.head.append(script);
}

// Give the terminal the keyboard once the control room draws: it begins without the focus.
new MutationObserver((_, observer) => {
  if (!document.body.classList.contains("-first-byte")) return;
  observer.disconnect();
  document.querySelector(".xterm-helper-textarea").focus();
}).observe(document.body, { attributeFilter: ["class"] });

// A file that arrives is downloaded here: browsers block new windows that nobody clicked for.
const open = window.open.bind(window);
window.open = (url, ...rest) => {
  if (!String(url).startsWith(`${location.origin}/download/`)) return open(url, ...rest);
  const link = document.createElement("a");
  link.href = url;
  link.download = "";
  link.click();
  return null;
};

window.addEventListener("hashchange", () => location.reload());
document.querySelector("#ended button").addEventListener("click", () => location.reload());
begin().catch((error) => show(`The server does not answer: ${error.message}`));
