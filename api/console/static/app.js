// The little that pages need beside htmx: say so when the pool is not heard, and ask before what can't be undone.
(function () {
  "use strict";
  function offline(on) {
    var bar = document.getElementById("offline");
    if (bar) bar.hidden = !on;
  }
  document.addEventListener("htmx:sseOpen", function () { offline(false); });
  document.addEventListener("htmx:sseError", function () { offline(true); });
  document.addEventListener("htmx:sendError", function () { offline(true); });
  document.addEventListener("htmx:afterRequest", function (e) { if (e.detail.successful) offline(false); });
  // A session that has ended answers a refresh with 401: the page itself then leads to where one signs in.
  document.addEventListener("htmx:responseError", function (e) {
    if (e.detail.xhr.status === 401) location.reload();
  });
  // While a form is on its way the page is not refreshed: a reload would take the form's answer away.
  var leaving = false;
  document.addEventListener("submit", function (e) {
    var question = e.target.getAttribute("data-confirm");
    if (question && !window.confirm(question)) { e.preventDefault(); return; }
    leaving = true;
    setTimeout(function () { leaving = false; }, 10000);
  });
  window.addEventListener("pageshow", function () { leaving = false; });
  ["htmx:beforeRequest", "htmx:beforeOnLoad"].forEach(function (name) {
    document.addEventListener(name, function (e) { if (leaving) e.preventDefault(); });
  });
})();
