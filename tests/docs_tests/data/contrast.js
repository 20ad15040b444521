(() => {
  const light = colour => {
    const parts = colour.match(/[\d.]+/g).slice(0, 3).map(part => {
      const value = part / 255;
      return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const node = document.querySelector(".diagram .node");
  const ground = getComputedStyle(node.querySelector("rect, path, polygon, circle")).fill;
  const text = getComputedStyle(node.querySelector("text, tspan")).fill;
  const [low, high] = [light(ground), light(text)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
})()
