"""The typed objects that everybody uses. They measure and judge nothing."""
