// Owns the words for those who do not see the page: one at a time, politely.

const place = document.getElementById("announcements");

export function announce(text) {
  place.textContent = "";
  requestAnimationFrame(() => {
    place.textContent = text;
  });
}
