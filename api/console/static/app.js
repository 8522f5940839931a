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
  // A hand scanner types a serial and then Enter, which would send a form that is half filled: it leads to the next field.
  document.addEventListener("keydown", function (e) {
    if (e.key !== "Enter" || !e.target.matches || !e.target.matches("input[data-serial]")) return;
    e.preventDefault();
    var fields = Array.from(e.target.form.elements).filter(function (x) { return x.matches("input:not([type=hidden]):not([type=file]), select, textarea"); });
    var next = fields[fields.indexOf(e.target) + 1];
    if (next) next.focus();
  });
  // Where the browser reads bar codes, the label can be photographed. A label with several codes lets the person choose.
  function scan(button) {
    var name = button.getAttribute("data-scan"), field = document.getElementById(name), word = document.getElementById(name + "_scanned");
    var camera = document.createElement("input");
    camera.type = "file";
    camera.accept = "image/*";
    camera.setAttribute("capture", "environment");
    camera.addEventListener("change", function () {
      if (!camera.files.length) return;
      createImageBitmap(camera.files[0]).then(function (picture) { return new BarcodeDetector().detect(picture); }).then(function (codes) {
        var values = Array.from(new Set(codes.map(function (c) { return c.rawValue.trim(); }).filter(Boolean)));
        word.textContent = values.length === 0 ? "No bar code is in the picture." : values.length === 1 ? "Read: compare it with the label." : "Which of them is the serial? ";
        if (values.length === 1) { field.value = values[0]; return; }
        values.forEach(function (v) {
          var b = document.createElement("button");
          b.type = "button";
          b.textContent = v;
          b.addEventListener("click", function () { field.value = v; word.textContent = "Read: compare it with the label."; });
          word.append(b, " ");
        });
      }).catch(function () { word.textContent = "The picture could not be read. Type the serial."; });
    });
    camera.click();
  }
  if ("BarcodeDetector" in window) document.querySelectorAll("button[data-scan]").forEach(function (b) {
    b.hidden = false;
    b.addEventListener("click", function () { scan(b); });
  });
  window.addEventListener("pageshow", function () { leaving = false; });
  ["htmx:beforeRequest", "htmx:beforeOnLoad"].forEach(function (name) {
    document.addEventListener(name, function (e) { if (leaving) e.preventDefault(); });
  });
})();
