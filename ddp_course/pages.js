// Every small page begins here: start(data, find) is called once for each element of its class.
function ddpPage(name, start) {
  document.querySelectorAll(`.ddp-${name}:not([data-ready])`).forEach((box) => {
    box.dataset.ready = "yes";
    const data = JSON.parse(box.querySelector("script[type='application/json']").textContent);
    start(data, (part) => box.querySelector(`[data-is='${part}']`));
  });
}
