module stepmem.test/translate

go 1.26.0

require github.com/prometheus/otlptranslator v1.0.0
