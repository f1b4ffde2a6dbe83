"""pilescore: the Physics-Informed Log Evidence of models fitted to data and to a differential equation."""

import jax

jax.config.update("jax_enable_x64", True)
