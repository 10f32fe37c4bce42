"""An archive with the program and its installer, for every Linux."""

from .common import File, packed, tar


def make(product):
    name = "nodectl-%s-linux-%s" % (product.version, product.machine)
    completions = {"bash": "nodectl.bash", "zsh": "_nodectl", "fish": "nodectl.fish"}
    files = [
        File("LICENSE-APACHE", product.source("../LICENSE-APACHE")),
        File("LICENSE-MIT", product.source("../LICENSE-MIT")),
        *[File("completions/" + completions[shell], content) for shell, content in sorted(product.completions.items())],
        File("install.sh", product.source("install.sh"), 0o755),
        *[File("man/" + page, content) for page, content in product.pages.items()],
        File("nodectl", product.program, 0o755),
        File("nodectl.service", product.source("nodectl.service")),
        File("nodectl.user.service", product.source("nodectl.user.service")),
        File("nodectl.toml", product.source("../config/nodectl.toml")),
    ]
    return name + ".tar.gz", packed(tar(files, product.epoch, name + "/"))
