"use strict";
(() => {
  const root = document.documentElement;
  const frames = [...document.querySelectorAll(".viewer iframe")];

  // The page and the viewer inside it share one light.
  const shine = () => {
    // The viewer is a page apart that this one cannot see into: it is told.
    if (root.dataset.theme) for (const frame of frames) frame.contentWindow.postMessage({ theme: root.dataset.theme }, "*");
  };
  for (const frame of frames) frame.addEventListener("load", shine);
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    shine();
  });

  for (const button of document.querySelectorAll(".viewer .full")) {
    const frame = button.parentElement.querySelector("iframe");
    button.addEventListener("click", () => frame.requestFullscreen && frame.requestFullscreen());
  }

  // The section that is being read is marked in the list of sections.
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const seen = new Set();
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) seen[entry.isIntersecting ? "add" : "delete"](entry.target.id);
    const first = [...links.keys()].find((key) => seen.has(key));
    for (const [key, link] of links) {
      link.classList.toggle("here", key === first);
      if (key === first) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
    }
  }, { rootMargin: "-10% 0px -60% 0px" });
  for (const section of document.querySelectorAll("main > section")) watch.observe(section);
})();
