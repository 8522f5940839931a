// Says so when the page no longer hears from the pool: what stands there may then be old.
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
  // A session that ended shows as a 401 on a refresh: go where one signs in.
  document.addEventListener("htmx:responseError", function (e) {
    if (e.detail.xhr.status === 401) location.reload();
  });
})();
