"""Studies and examples that use the public interface only."""
