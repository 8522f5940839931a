// Draws each element of the class plot from the numbers in its data-plot. Without it the table below says the same.
(function () {
  "use strict";
  var strokes = ["#2563eb", "#d97706", "#b91c1c", "#0f766e", "#7c3aed", "#be185d", "#4d7c0f", "#64748b"];
  var dashes = [[], [6, 3], [2, 3], [10, 3], [8, 3, 2, 3], [1, 2], [12, 4, 4, 4], [4, 6]]; // told apart without colour, too
  document.querySelectorAll(".plot").forEach(function (box) {
    var ink = getComputedStyle(box).color, faint = { stroke: "rgba(128, 128, 128, 0.25)" };
    var p = JSON.parse(box.getAttribute("data-plot"));
    var show = function (u, v) { return v == null ? "–" : v.toFixed(1) + " " + p.unit; };
    var options = {
      width: box.clientWidth || 480,
      height: 220,
      tzDate: function (s) { return uPlot.tzDate(new Date(s * 1000), p.zone); },
      scales: { y: p.unit === "%" ? { range: [0, 100] } : { range: function (u, lo, hi) { return [0, Math.max(hi, 1) * 1.05]; } } },
      axes: [{ stroke: ink, grid: faint, ticks: faint }, { stroke: ink, size: 60, grid: faint, ticks: faint }],
      series: [{ value: "{YYYY}-{MM}-{DD}" }].concat(p.series.map(function (s, i) {
        return { label: s.label, stroke: strokes[i % 8], dash: dashes[i % 8], width: 2, value: show, points: { show: true, size: 5 } };
      })),
    };
    var plot = new uPlot(options, [p.x].concat(p.series.map(function (s) { return s.values; })), box);
    window.addEventListener("resize", function () { plot.setSize({ width: box.clientWidth, height: 220 }); });
  });
})();
