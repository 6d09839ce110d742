"""Device code of block scores and of the choice by them."""
