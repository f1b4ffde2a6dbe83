"""The case studies of `pilescore study`. They use the public interface only."""
