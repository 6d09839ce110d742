"use strict";
// The first page of a site: it is whole without scripts; these follow the theme.
function main() {
  watchTheme(() => { countDrawn(); });
  countDrawn();
}

main();
