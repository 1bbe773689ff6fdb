/* tls_certificates.h - an authority and certificates of it, made when a test needs them.
 */
#ifndef RLE_TESTS_TLS_CERTIFICATES_H
#define RLE_TESTS_TLS_CERTIFICATES_H

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

typedef struct authority {
    EVP_PKEY *key;
    X509 *cert;
} authority;

static inline void need(int ok)
{
    if (!ok) abort();
}

static inline EVP_PKEY *new_key(void)
{
    EVP_PKEY *key = NULL;
    EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new_id(EVP_PKEY_EC, NULL);
    need(ctx && EVP_PKEY_keygen_init(ctx) > 0 &&
         EVP_PKEY_CTX_set_ec_paramgen_curve_nid(ctx, NID_X9_62_prime256v1) > 0 &&
         EVP_PKEY_keygen(ctx, &key) > 0);
    EVP_PKEY_CTX_free(ctx);
    return key;
}

static inline void add_extension(X509 *cert, int nid, const char *text)
{
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, NULL, nid, text);
    need(e && X509_add_ext(cert, e, -1));
    X509_EXTENSION_free(e);
}

/* Valid from now + `from` to now + `to` seconds; signed by `by`, or itself when NULL. */
static inline X509 *new_certificate(EVP_PKEY *key, const authority *by,
                                    const char *called, const char *names, long from,
                                    long to)
{
    static long serial = 1;
    X509 *cert = X509_new();
    need(cert && X509_set_version(cert, 2));
    ASN1_INTEGER_set(X509_get_serialNumber(cert), serial++);
    X509_gmtime_adj(X509_getm_notBefore(cert), from);
    X509_gmtime_adj(X509_getm_notAfter(cert), to);
    X509_set_pubkey(cert, key);
    X509_NAME *name = X509_get_subject_name(cert);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)called,
                               -1, -1, 0);
    X509_set_issuer_name(cert, by ? X509_get_subject_name(by->cert) : name);
    if (!by) add_extension(cert, NID_basic_constraints, "critical,CA:TRUE");
    if (names) add_extension(cert, NID_subject_alt_name, names);
    need(X509_sign(cert, by ? by->key : key, EVP_sha256()));
    return cert;
}

static inline authority new_authority(const char *called)
{
    authority a = {.key = new_key()};
    a.cert = new_certificate(a.key, NULL, called, NULL, -3600, 3600);
    return a;
}

static inline void free_authority(authority *a)
{
    EVP_PKEY_free(a->key);
    X509_free(a->cert);
}

static inline void write_certificate(const char *path, X509 *cert)
{
    FILE *f = fopen(path, "w");
    need(f && PEM_write_X509(f, cert));
    fclose(f);
}

static inline void write_key(const char *path, EVP_PKEY *key)
{
    FILE *f = fopen(path, "w");
    need(f && chmod(path, 0600) == 0 &&
         PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL));
    fclose(f);
}

/* <folder>/<name>.crt and .key. */
static inline void issue(const authority *by, const char *folder, const char *name,
                         const char *names, long from, long to)
{
    char path[256];
    EVP_PKEY *key = new_key();
    X509 *cert = new_certificate(key, by, "a worker", names, from, to);
    snprintf(path, sizeof path, "%s/%s.crt", folder, name);
    write_certificate(path, cert);
    snprintf(path, sizeof path, "%s/%s.key", folder, name);
    write_key(path, key);
    X509_free(cert);
    EVP_PKEY_free(key);
}

#endif
